//! What a call on a descriptor that is not offloaded costs under the library: the same libc calls
//! through the preloaded symbols and past them, in one process. Budget: 10 ns.
//!
//! Run by `ci/bench`, or: `LIBVMA=target/release/libvma.so cargo bench -p floor --bench passthrough`

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;

use criterion::{Criterion, Throughput};

type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type Poll = unsafe extern "C" fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int;

fn main() {
    preload();
    // An Internet socket brings the library to life: without it every call is one load and a jump.
    let _alive = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
    let mut criterion = Criterion::default().configure_from_args();
    calls(&mut criterion);
    criterion.final_summary();
}

/// Runs this program again under the library, if it is not there yet.
fn preload() {
    if std::env::var_os("LD_PRELOAD").is_some() {
        return;
    }
    let library = std::env::var("LIBVMA").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/libvma.so").to_owned()
    });
    assert!(std::path::Path::new(&library).exists(), "no library at {library}");
    let error = Command::new(std::env::current_exe().expect("this program"))
        .args(std::env::args_os().skip(1))
        .env("LD_PRELOAD", library)
        .env("VMA_TRACELEVEL", "none")
        .exec();
    panic!("cannot run this program again: {error}");
}

fn calls(criterion: &mut Criterion) {
    let (ours, libcs) = (find(libc::RTLD_DEFAULT, c"recv"), find(libc_itself(), c"recv"));
    assert_ne!(ours, libcs, "the library is not preloaded");
    let mut group = criterion.benchmark_group("recv on a closed descriptor");
    group.throughput(Throughput::Elements(1));
    for (name, address) in [("libc", libcs), ("libvma", ours)] {
        // SAFETY: both addresses are those of a function `recv`, which has this type.
        let recv: Recv = unsafe { std::mem::transmute(address) };
        group.bench_function(name, |bencher| {
            // SAFETY: a closed descriptor makes the call fail before it looks at the buffer.
            bencher.iter(|| unsafe { recv(black_box(900), std::ptr::null_mut(), 0, 0) });
        });
    }
    group.finish();

    let (ours, libcs) = (find(libc::RTLD_DEFAULT, c"poll"), find(libc_itself(), c"poll"));
    let mut group = criterion.benchmark_group("poll of one descriptor");
    group.throughput(Throughput::Elements(1));
    for (name, address) in [("libc", libcs), ("libvma", ours)] {
        // SAFETY: both addresses are those of a function `poll`, which has this type.
        let poll: Poll = unsafe { std::mem::transmute(address) };
        group.bench_function(name, |bencher| {
            let mut entry = libc::pollfd { fd: 0, events: 0, revents: 0 };
            // SAFETY: one entry, as the count says.
            bencher.iter(|| unsafe { poll(black_box(&mut entry), 1, 0) });
        });
    }
    group.finish();
}

fn libc_itself() -> *mut c_void {
    // SAFETY: a NUL-terminated name; libc is loaded already, so nothing new runs.
    unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) }
}

fn find(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of dlopen or RTLD_DEFAULT, and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "no {name:?}");
    found
}
