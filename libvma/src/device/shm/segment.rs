//! The memory of a link: a sealed memfd with two lanes, one for each direction.
//!
//! Layout, all offsets in bytes: a header page; then for each lane a page of shared words (each
//! alone on its pair of cache lines), the slots, the return ring, the chunks, more shared words. Only as much of it
//! is real memory as was ever touched: where memory is not overcommitted (or a control group's is
//! used up), touching more of it can kill the process, as with any memory. A peer may take pages
//! out of a memfd at any time; they read as zeroes then, which is checked like all that it writes.

use core::ptr::{NonNull, copy_nonoverlapping};
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::bell::Bell;
use super::lane::{INLINE, Inline, Lane, NEAR, Word};
use crate::device::OpenError;
use crate::sys::Fd;

/// Bytes of a chunk: a page.
pub const CHUNK: usize = 4096;

const SLOTS: usize = 1024;
pub(super) const SLOT: usize = 128;
pub const CHUNKS: usize = 1024;

pub(super) const PAGE: usize = 4096;
pub(super) const POSITION: usize = 0;
const ARMED: usize = 128;
const STARVED: usize = 256;
const WITHDRAWN: usize = 384;
const CAN_RING: usize = 512;
const FIRST_NOTE: usize = 640;
pub(super) const FIRST_SLOT: usize = PAGE;
pub(super) const RETURNS: usize = FIRST_SLOT + SLOTS * SLOT;
const FIRST_CHUNK: usize = RETURNS + CHUNKS * 8;
const MORE_NOTES: usize = FIRST_CHUNK + CHUNKS * CHUNK;
const READERS: usize = MORE_NOTES + NOTE_PAGES * PAGE;
pub(super) const LANE: usize = READERS + READER_PAGES * PAGE;
pub(super) const SIZE: usize = PAGE + 2 * LANE;

/// The first notes fill what is left of the page of shared words; the others lie behind the chunks.
pub const NOTES: usize = (PAGE - FIRST_NOTE) / 8 - 1;
const NOTE_PAGES: usize = 32;
/// Connections beyond some 16 000 have no reader's word.
const READER_PAGES: usize = 32;

const _: () = assert!(SLOT == 8 + INLINE && NEAR == 64 - 8);
const _: () = assert!(SLOTS.is_power_of_two() && CHUNKS.is_power_of_two());
const _: () = assert!(FIRST_CHUNK.is_multiple_of(PAGE) && LANE.is_multiple_of(PAGE));

/// The first words of the header: what this is, in which version, and how large.
const HEADER: [u64; 3] = [u64::from_le_bytes(*b"libvmaSM"), 4, SIZE as u64];

/// What nobody may do to the memory any more: a mapping must not lose its pages.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// `statfs.f_type` of memory that comes page by page and is never short of a huge page.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Memory for one link, and the descriptor by which the other side gets it; and the bell that wakes
/// this side.
pub struct Segment {
    pub(super) mapping: Mapping,
    pub(super) bell: Bell,
    fd: Fd,
}

impl Segment {
    /// Makes a new one; its maker is [`super::Side::Maker`].
    pub fn create() -> Result<Segment, OpenError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create(c"libvma", flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => rustix::fs::memfd_create(c"libvma", flags),
            other => other,
        };
        let fd = Fd::adopt(file.map_err(system("memfd_create"))?)
            .map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
        // The limit holds for a memfd, too, and to meet it is a signal that kills the program.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < SIZE as u64) {
            return Err(system("ftruncate of a memfd")(Errno::FBIG));
        }
        rustix::fs::ftruncate(&fd, SIZE as u64).map_err(system("ftruncate of a memfd"))?;
        let mut header = [0; HEADER.len() * 8];
        for (bytes, word) in header.chunks_exact_mut(8).zip(HEADER) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        rustix::io::pwrite(&fd, &header, 0).map_err(system("pwrite to a memfd"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("fcntl(F_ADD_SEALS)"))?;
        let mapping = Mapping::new(&fd).map_err(system("mmap of a memfd"))?;
        Ok(Segment { mapping, bell: Bell::make()?, fd })
    }

    /// Takes what a peer made. Nothing is mapped before it is known that the pages will be there
    /// for as long as the mapping is.
    pub fn take(fd: Fd) -> Result<Segment, OpenError> {
        let seals = match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) => seals,
            Err(Errno::INVAL) => return refuse("not a memfd"),
            Err(errno) => return Err(system("fcntl(F_GET_SEALS)")(errno)),
        };
        if !seals.contains(SEALS) {
            return refuse("its size is not sealed");
        }
        let file_system = rustix::fs::fstatfs(&fd).map_err(system("fstatfs of a memfd"))?;
        if file_system.f_type as i64 != TMPFS_MAGIC {
            return refuse("made of huge pages");
        }
        let status = rustix::fs::fstat(&fd).map_err(system("fstat of a memfd"))?;
        if status.st_size != SIZE as i64 {
            return refuse("not of the size of a link");
        }
        let mut header = [0; HEADER.len() * 8];
        let read = rustix::io::pread(&fd, &mut header, 0).map_err(system("pread of a memfd"))?;
        let words = header
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        if read != header.len() || !words.eq(HEADER) {
            return refuse("of another version, or no link at all");
        }
        let mapping = Mapping::new(&fd).map_err(system("mmap of a memfd"))?;
        Ok(Segment { mapping, bell: Bell::make()?, fd })
    }

    /// What the other side takes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What the other side wakes us by. It is to get a copy, and nobody else.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.rings.as_fd()
    }
}

fn refuse<T>(why: &'static str) -> Result<T, OpenError> {
    Err(OpenError::Segment(why))
}

pub(super) fn system(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}

/// The mapped memory; always [`SIZE`] bytes.
pub(super) struct Mapping(NonNull<u8>);

// SAFETY: the memory belongs to the value, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: &Fd) -> rustix::io::Result<Mapping> {
        // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
        let base = unsafe {
            mmap(
                core::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let mapping = Mapping(NonNull::new(base.cast()).ok_or(Errno::NOMEM)?);
        // A child that had it would be a second producer.
        // SAFETY: `base` is the mapping of `SIZE` bytes made above.
        unsafe { madvise(base, SIZE, Advice::LinuxDontFork) }.map(|()| mapping)
    }

    /// Lane 0 or 1.
    #[inline(always)]
    pub fn lane(&self, number: usize) -> SharedLane<'_> {
        SharedLane { mapping: self, start: PAGE + (number & 1) * LANE }
    }

    /// A pointer to `len` bytes at `offset`. Every caller's numbers are masked or constant, so the
    /// check costs nothing where it is inlined.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= SIZE && len <= SIZE - offset);
        // SAFETY: the assertion keeps the result inside the mapping of SIZE bytes.
        unsafe { self.0.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and SIZE are those of a mapping that only this value refers to; what borrows
        // from it ended before.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// One direction within the mapping.
#[derive(Clone, Copy)]
pub(super) struct SharedLane<'a> {
    mapping: &'a Mapping,
    start: usize,
}

impl<'a> SharedLane<'a> {
    #[inline(always)]
    fn word(&self, offset: usize) -> &'a AtomicU64 {
        let word = self.mapping.at(self.start + (offset & !7), 8).cast::<AtomicU64>();
        // SAFETY: `at` gave eight bytes inside the mapping, which lives as long as 'a; they are
        // aligned (a page plus a multiple of 8), initialised (zeroed by the kernel), and in every
        // process written by atomic stores only; a peer that does otherwise changes the value that
        // is loaded, nothing else.
        unsafe { word.as_ref() }
    }

    /// A word that the consumer of the lane writes for the producer to read, whatever it means.
    #[inline(always)]
    pub fn note(&self, number: usize) -> Option<&'a AtomicU64> {
        let place = match number.checked_sub(NOTES) {
            None => FIRST_NOTE + number * 8,
            Some(rest) if rest < NOTE_PAGES * PAGE / 8 => MORE_NOTES + rest * 8,
            Some(_) => return None,
        };
        Some(self.word(place))
    }

    /// How often the consumer has withdrawn a socket that others can find.
    #[inline(always)]
    pub fn withdrawn(&self) -> &'a AtomicU64 {
        self.word(WITHDRAWN)
    }

    /// One bit for each bell of the producer's process that the consumer's process can ring.
    #[inline(always)]
    pub fn can_ring(&self) -> &'a AtomicU64 {
        self.word(CAN_RING)
    }

    /// The CPU that the consumer last said it runs on, and 1 more; 0 if it never did.
    #[inline]
    pub fn cpu(&self) -> &'a AtomicU64 {
        self.word(FIRST_NOTE + NOTES * 8)
    }

    #[inline(always)]
    fn slot(slot: u64) -> usize {
        FIRST_SLOT + (slot as usize & (SLOTS - 1)) * SLOT
    }

    /// The first `len` bytes of a chunk that the caller holds: an honest peer writes to it only
    /// after it was given back.
    #[inline]
    pub fn chunk(&self, chunk: u16, len: usize) -> &'a [u8] {
        let (start, len) = self.checked(chunk, len);
        // SAFETY: `checked` gave `len` bytes inside the mapping, which lives as long as 'a, zeroed
        // by the kernel before anybody wrote. A peer that writes to a chunk it lent changes bytes
        // under this slice; they are payload, which is only ever copied and never decides about
        // memory, so it corrupts what it sends itself and nothing else.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The first `len` bytes of a free chunk, to write into.
    #[inline]
    pub fn chunk_mut(&mut self, chunk: u16, len: usize) -> &mut [u8] {
        let (start, len) = self.checked(chunk, len);
        // SAFETY: as in `chunk`; the chunk was taken from the producer's free list, so no other
        // slice of this process covers it, and no honest peer reads it before it is sent.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    #[inline(always)]
    fn checked(&self, chunk: u16, len: usize) -> (NonNull<u8>, usize) {
        let len = len.min(CHUNK);
        let offset = FIRST_CHUNK + (usize::from(chunk) & (CHUNKS - 1)) * CHUNK;
        (self.mapping.at(self.start + offset, len), len)
    }
}

impl Lane for SharedLane<'_> {
    type Word = AtomicU64;
    const SLOTS: u64 = SLOTS as u64;
    const CHUNKS: u64 = CHUNKS as u64;

    #[inline(always)]
    fn control(&self, slot: u64) -> &AtomicU64 {
        self.word(Self::slot(slot))
    }

    #[inline(always)]
    fn returned(&self, entry: u64) -> &AtomicU64 {
        self.word(RETURNS + (entry as usize & (CHUNKS - 1)) * 8)
    }

    #[inline(always)]
    fn position(&self) -> &AtomicU64 {
        self.word(POSITION)
    }

    #[inline(always)]
    fn armed(&self) -> &AtomicU64 {
        self.word(ARMED)
    }

    #[inline(always)]
    fn starved(&self) -> &AtomicU64 {
        self.word(STARVED)
    }

    #[inline(always)]
    fn reader(&self, number: u32) -> Option<&AtomicU64> {
        let place = number as usize;
        (place < READER_PAGES * PAGE / 8).then(|| self.word(READERS + place * 8))
    }

    #[inline(always)]
    fn write(&self, slot: u64, bytes: &Inline, used: usize) {
        let to = self.mapping.at(self.start + Self::slot(slot) + 8, INLINE).as_ptr();
        if used <= NEAR {
            // SAFETY: `at` gave INLINE writable bytes, `bytes` has as many, NEAR is fewer; one is
            // the mapping and the other private memory, so they do not overlap.
            unsafe { copy_nonoverlapping(bytes.as_ptr(), to, NEAR) };
        } else {
            // SAFETY: as above.
            unsafe { copy_nonoverlapping(bytes.as_ptr(), to, INLINE) };
        }
    }

    #[inline(always)]
    fn read(&self, slot: u64, bytes: &mut Inline, used: usize) {
        let from = self.mapping.at(self.start + Self::slot(slot) + 8, INLINE).as_ptr();
        if used <= NEAR {
            // SAFETY: `at` gave INLINE readable bytes, `bytes` has as many, NEAR is fewer; one is
            // the mapping and the other private memory, so they do not overlap. What a peer writes
            // meanwhile makes the copy another one, and only the copy is looked at.
            unsafe { copy_nonoverlapping(from, bytes.as_mut_ptr(), NEAR) };
        } else {
            // SAFETY: as above.
            unsafe { copy_nonoverlapping(from, bytes.as_mut_ptr(), INLINE) };
        }
        // The compiler may not read the slot again in place of the copy.
        compiler_fence(Ordering::AcqRel);
    }

    #[inline(always)]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    #[inline(always)]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_or(self, value, order)
    }

    #[inline(always)]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_and(self, value, order)
    }
}
