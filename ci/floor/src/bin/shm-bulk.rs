//! Bulk copying through shared memory: one side copies blocks into a ring, the other out of it. The
//! throughput that libvma's way between processes of one host is compared with.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use floor::cpu;

#[derive(Parser)]
#[command(about = "Bulk copying through shared memory")]
struct Options {
    /// Seconds to measure
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// CPUs of the writing and the reading side
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Bytes that may be under way
    #[arg(long, default_value_t = 512 * 1024)]
    window: usize,
}

const BLOCK: usize = 4096;

/// What both sides copy from and to: as large as a program's buffer is.
const BUFFER: usize = 128 * 1024;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; BLOCK]>);

#[repr(align(128))]
struct Position(AtomicU64);

/// A ring of blocks. The writer owns those from `written` to `read` plus the size, the reader
/// those from `read` to `written`.
struct Ring {
    blocks: Box<[Block]>,
    written: Position,
    read: Position,
    over: AtomicBool,
}

// SAFETY: a block is touched by its owner only, see `Ring`; the positions hand it over.
unsafe impl Sync for Ring {}

fn main() -> Result<()> {
    let options = Options::parse();
    let count = options.window / BLOCK;
    ensure!(count > 0, "--window must be at least {BLOCK}");
    let ring = Ring {
        blocks: (0..count).map(|_| Block(UnsafeCell::new([1; BLOCK]))).collect(),
        written: Position(AtomicU64::new(0)),
        read: Position(AtomicU64::new(0)),
        over: AtomicBool::new(false),
    };
    let (writer, reader) = (options.cpus.first().copied(), options.cpus.get(1).copied());
    thread::scope(|scope| {
        let writing = scope.spawn(|| write(&ring, writer));
        let measured = read(&ring, reader, Duration::from_secs_f64(options.time));
        ring.over.store(true, Ordering::Relaxed);
        writing.join().map_err(|_| anyhow!("the writing side panicked"))??;
        println!("window={} gbit={:.2}", options.window, measured?);
        Ok(())
    })
}

fn write(ring: &Ring, cpu: Option<usize>) -> Result<()> {
    cpu::pin(cpu)?;
    let source = vec![1; BUFFER];
    let size = ring.blocks.len() as u64;
    let (mut next, mut read) = (0u64, 0u64);
    loop {
        for bytes in black_box(&source).chunks_exact(BLOCK) {
            while next - read == size {
                if ring.over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                read = ring.read.0.load(Ordering::Acquire);
            }
            let block = ring.blocks[(next % size) as usize].0.get();
            // SAFETY: the block was read (or never written), so it is the writer's until `written`
            // passes it; the pointer comes from an UnsafeCell of BLOCK bytes.
            let block = unsafe { &mut *block };
            block.copy_from_slice(bytes);
            next += 1;
            ring.written.0.store(next, Ordering::Release);
        }
    }
}

/// Gigabits per second.
fn read(ring: &Ring, cpu: Option<usize>, time: Duration) -> Result<f64> {
    cpu::pin(cpu)?;
    let mut target = vec![0; BUFFER];
    let size = ring.blocks.len() as u64;
    let (mut next, mut written) = (0u64, 0u64);
    let start = Instant::now();
    while start.elapsed() < time {
        for bytes in target.chunks_exact_mut(BLOCK) {
            while next == written {
                written = ring.written.0.load(Ordering::Acquire);
            }
            let block = ring.blocks[(next % size) as usize].0.get();
            // SAFETY: `written` has passed the block, so it is the reader's until `read` does.
            let block = unsafe { &*block };
            bytes.copy_from_slice(block);
            next += 1;
            ring.read.0.store(next, Ordering::Release);
        }
        black_box(&mut target);
    }
    let bits = (next as usize * BLOCK * 8) as f64;
    Ok(bits / start.elapsed().as_secs_f64() / 1e9)
}
