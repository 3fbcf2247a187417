//! A sender of numbered UDP messages over an AF_XDP socket.

use std::iter;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use clap::Args;

use crate::datagram::{MAX_PAYLOAD, MIN_PAYLOAD, Mac, Path, Template};
use crate::umem::Frame;
use crate::xsk::{Endpoint, Xsk, parse_mac};

#[derive(Args)]
pub struct Outgoing {
    #[command(flatten)]
    pub endpoint: Endpoint,
    /// Hardware address of the peer
    #[arg(long, value_parser = parse_mac)]
    dst_mac: Mac,
    #[arg(long)]
    src_ip: Ipv4Addr,
    #[arg(long)]
    dst_ip: Ipv4Addr,
    /// Bytes of UDP payload
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// Seconds
    #[arg(long, default_value_t = 3.0)]
    pub time: f64,
}

/// All frames to send with hold the template from the start; a message costs a new number and
/// the checksum that follows from it.
pub struct Source {
    pub xsk: Xsk,
    template: Template,
    spare: Vec<Frame>,
    next: u64,
}

impl Source {
    pub fn open(options: &Outgoing) -> Result<Self> {
        let sizes = MIN_PAYLOAD..=MAX_PAYLOAD;
        ensure!(sizes.contains(&options.size), "--size must be in {sizes:?}");
        let path = Path {
            src_mac: options.endpoint.mac()?,
            dst_mac: options.dst_mac,
            src_ip: options.src_ip,
            dst_ip: options.dst_ip,
            port: options.endpoint.port,
        };
        let template = Template::new(&path, options.size);
        let (xsk, mut spare) = Xsk::open(&options.endpoint)?;
        for frame in &mut spare {
            template.write(frame.reset(template.size()));
        }
        Ok(Self { xsk, template, spare, next: 0 })
    }

    /// Sends up to `count` messages, as many as there are frames. With `copy` the payload is copied
    /// into each frame, as a program with data of its own has to.
    #[inline]
    pub fn send(&mut self, count: usize, copy: bool) -> Result<()> {
        let keep = self.spare.len().saturating_sub(count);
        for mut frame in self.spare.drain(keep..) {
            if copy {
                self.template.write(frame.packet());
            }
            self.template.stamp(frame.packet(), self.next);
            self.next += 1;
            self.xsk.queue(frame);
        }
        self.xsk.kick()
    }

    /// Takes back the frames that have been sent.
    #[inline]
    pub fn collect(&mut self) {
        for mut frame in iter::from_fn(|| self.xsk.completed()) {
            frame.reset(self.template.size());
            self.spare.push(frame);
        }
    }

    /// How many messages were sent, which is also the next one's number.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.next
    }
}
