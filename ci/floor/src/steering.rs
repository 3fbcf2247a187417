//! The XDP program that hands an AF_XDP socket its frames: loaded, filled in, attached.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use aya::maps::XskMap;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use clap::ValueEnum;

static PROGRAM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

#[derive(Clone, Copy, ValueEnum)]
pub enum Mode {
    /// in the kernel's network stack, on any interface
    Generic,
    /// in the driver
    Native,
}

/// An attached program. It is attached by a BPF link, so it is gone when this is dropped and
/// when the process is killed.
pub struct Steering {
    _program: Ebpf,
}

impl Steering {
    /// Steers datagrams for UDP port `port` that arrive on `queue` of `dev` into `socket`.
    pub fn attach(dev: &str, mode: Mode, port: u16, socket: &OwnedFd, queue: u32) -> Result<Self> {
        let mut program = EbpfLoader::new()
            .override_global("port", &port.to_be(), true)
            .load(PROGRAM)
            .context("load the XDP object (needs CAP_BPF and CAP_NET_ADMIN)")?;

        let sockets = program.map_mut("sockets").context("the XDP object has a map of sockets")?;
        XskMap::try_from(sockets)?
            .set(queue, socket.as_raw_fd(), 0)
            .context("enter the socket into the XSKMAP")?;

        let steer = program.program_mut("steer").context("the XDP object has a program")?;
        let steer: &mut Xdp = steer.try_into()?;
        steer.load().context("load the XDP program")?;
        let mode = match mode {
            Mode::Generic => XdpMode::Skb,
            Mode::Native => XdpMode::Driver,
        };
        steer.attach(dev, mode).with_context(|| format!("attach the XDP program to {dev}"))?;
        Ok(Self { _program: program })
    }
}
