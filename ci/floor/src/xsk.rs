//! An AF_XDP socket on queue 0 of an interface: its memory, its four rings, its kick.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, send, socket};

use crate::datagram::Mac;
use crate::ring::{Consumer, Producer, Ring};
use crate::steering::{Mode, Steering};
use crate::umem::{Frame, Umem};

/// Frames that circulate through fill and RX ring.
const RX_FRAMES: usize = 1024;
/// Frames that the caller of [`Xsk::open`] gets to send with.
const TX_FRAMES: usize = 1024;
/// Each ring holds every frame there is, so none is ever full.
const RING_SIZE: u32 = (RX_FRAMES + TX_FRAMES) as u32;
/// Frames are returned to the fill ring this many at a time.
const REFILL: usize = 64;
const QUEUE: u32 = 0;

/// The kernel frees the pool of a closed socket some 50 ms later; until then it says EBUSY.
const POOL_RELEASE: Duration = Duration::from_millis(300);

/// Where the socket sits.
#[derive(Args, Clone)]
pub struct Endpoint {
    /// Interface, in this network namespace
    #[arg(long)]
    pub dev: String,
    /// XDP mode
    #[arg(long, value_enum, default_value_t = Mode::Generic)]
    pub mode: Mode,
    /// UDP port, of both ends
    #[arg(long, default_value_t = 11111)]
    pub port: u16,
    /// Run on this CPU
    #[arg(long)]
    pub cpu: Option<usize>,
}

impl Endpoint {
    /// The interface's own hardware address.
    pub fn mac(&self) -> Result<Mac> {
        parse_mac(&self.attribute("address")?)
    }

    fn index(&self) -> Result<u32> {
        Ok(self.attribute("ifindex")?.parse()?)
    }

    fn attribute(&self, name: &str) -> Result<String> {
        let file = format!("/sys/class/net/{}/{name}", self.dev);
        let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        Ok(text.trim().to_owned())
    }
}

/// Parses `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> Result<Mac> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    let mac = bytes.ok().and_then(|bytes| Mac::try_from(bytes).ok());
    mac.with_context(|| format!("{text:?} is not a MAC address"))
}

pub struct Xsk {
    socket: OwnedFd,
    umem: Umem,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<XdpDesc>,
    tx: Producer<XdpDesc>,
    refill: Vec<Frame>,
    in_chain: bool,
    _steering: Steering,
}

impl Xsk {
    /// Opens the socket, with traffic steered to it, and frames to send with.
    pub fn open(endpoint: &Endpoint) -> Result<(Self, Vec<Frame>)> {
        let (umem, mut rx_frames) = Umem::new(RX_FRAMES + TX_FRAMES)?;
        let tx_frames = rx_frames.split_off(RX_FRAMES);

        let socket = socket(AddressFamily::XDP, SocketType::RAW, None)
            .context("open an AF_XDP socket (needs CAP_NET_RAW)")?;
        set_xdp_umem_reg(&socket, umem.registration()).context("register the UMEM")?;
        set_xdp_umem_fill_ring_size(&socket, RING_SIZE).context("size the fill ring")?;
        set_xdp_umem_completion_ring_size(&socket, RING_SIZE)
            .context("size the completion ring")?;
        set_xdp_rx_ring_size(&socket, RING_SIZE).context("size the RX ring")?;
        set_xdp_tx_ring_size(&socket, RING_SIZE).context("size the TX ring")?;
        let at = xdp_mmap_offsets(&socket).context("ask for the ring offsets")?;
        let fd = socket.as_fd();

        let mut xsk = Self {
            umem,
            fill: Producer::new(Ring::map(fd, XDP_UMEM_PGOFF_FILL_RING, &at.fr, RING_SIZE)?),
            completion: Consumer::new(Ring::map(
                fd,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                &at.cr,
                RING_SIZE,
            )?),
            rx: Consumer::new(Ring::map(fd, XDP_PGOFF_RX_RING, &at.rx, RING_SIZE)?),
            tx: Producer::new(Ring::map(fd, XDP_PGOFF_TX_RING, &at.tx, RING_SIZE)?),
            refill: Vec::with_capacity(REFILL),
            in_chain: false,
            _steering: attach(&socket, endpoint)?,
            socket,
        };
        for frame in rx_frames {
            xsk.recycle(frame);
        }
        Ok((xsk, tx_frames))
    }

    /// A received frame, to be sent or recycled. Packets of several fragments, which this
    /// program never sends, are dropped.
    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        while let Some(descriptor) = self.rx.pop() {
            let frame = self.umem.reclaim(descriptor.addr, descriptor.len as usize)?;
            let continued = descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD);
            let whole = !continued && !self.in_chain;
            self.in_chain = continued;
            if whole {
                return Some(frame);
            }
            self.recycle(frame);
        }
        None
    }

    /// Gives a frame to the kernel to receive into.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.refill.push(frame);
        if self.refill.len() == REFILL {
            for frame in self.refill.drain(..) {
                self.fill.push(self.umem.lend(frame));
            }
            self.fill.submit();
        }
    }

    /// Puts a frame into the TX ring; [`kick`](Self::kick) sends it.
    #[inline]
    pub fn queue(&mut self, frame: Frame) {
        let len = frame.length() as u32;
        let addr = self.umem.lend(frame);
        self.tx.push(XdpDesc { addr, len, options: XdpDescOptions::empty() });
    }

    /// Makes the kernel send what is queued. It takes at most 32 frames in a call and says
    /// EAGAIN when there are more, or when the interface is behind.
    #[inline]
    pub fn kick(&mut self) -> Result<()> {
        self.tx.submit();
        loop {
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
                Err(error) => return Err(error).context("kick the TX ring"),
            }
        }
    }

    /// A frame that has been sent.
    #[inline]
    pub fn completed(&mut self) -> Option<Frame> {
        let address = self.completion.pop()?;
        self.umem.reclaim(address, 0)
    }
}

/// Binds the socket and points the interface's XDP program at it.
fn attach(socket: &OwnedFd, endpoint: &Endpoint) -> Result<Steering> {
    let Endpoint { dev, mode, port, .. } = endpoint;
    let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_SG;
    let address = SocketAddrXdp::new(flags, endpoint.index()?, QUEUE);
    let started = Instant::now();
    loop {
        match bind(socket, &address) {
            Ok(()) => return Steering::attach(dev, *mode, *port, socket, QUEUE),
            Err(Errno::BUSY) if started.elapsed() < POOL_RELEASE => sleep(Duration::from_millis(5)),
            Err(Errno::BUSY) => bail!("{dev} queue {QUEUE} belongs to another AF_XDP socket"),
            Err(error) => {
                return Err(error).with_context(|| format!("bind to {dev} queue {QUEUE}"));
            }
        }
    }
}
