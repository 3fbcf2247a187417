//! Compiles the programs for BPF, and gives the shared object its name and its version.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = "src/device/xdp/bpf";
    println!("cargo:rerun-if-changed={folder}");
    println!("cargo:rerun-if-env-changed=CLANG");
    // ci/rustc hands it to the compiler.
    println!("cargo:rerun-if-changed=profile");
    println!("cargo:rerun-if-env-changed=LIBVMA_PROFILE_INTO");

    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    for program in ["steer", "ingress", "establish"] {
        let source = format!("{folder}/{program}.bpf.c");
        let object = out.join(format!("{program}.bpf.o"));
        let status = Command::new(&clang)
            // v3: atomic operations that tell the old value (Linux 5.12).
            .args(["-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror"])
            // <linux/types.h> reaches for <asm/types.h>, which Debian keeps per architecture.
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status()
            .unwrap_or_else(|error| {
                panic!("cannot run {clang}: {error}; install clang (ci/setup does) or set CLANG")
            });
        assert!(status.success(), "{clang} could not compile {source}");
    }

    // rustc sets no soname. NODELETE: after the first offloaded socket a thread of ours runs
    // in the library's text, so a dlclose() must not unmap it. NOW: a symbol resolved in a
    // signal handler would take the loader's lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{}", soname());
    for argument in ["-Wl,-z,nodelete", "-Wl,-z,now"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    link_unwinder(&out);
    identify();
}

/// std walks the stack for the message of a panic, by functions of libgcc_s.so. A program in C does not load
/// that otherwise, and loading it is a quarter of the time that the library costs a program that opens no
/// socket: the functions are linked in. The linker finds this script where it looks for libgcc_s.so.
fn link_unwinder(out: &Path) {
    let folder = out.join("unwinder");
    let script = folder.join("libgcc_s.so");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&script, "INPUT ( -lgcc_eh )\n"))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", script.display()));
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
}

/// The debug library lies in the same folder, and ldconfig makes the link libvma.so.9 to a library that
/// calls itself so.
fn soname() -> &'static str {
    if is_debug_library() { "libvma-debug.so" } else { libvma_dev::SONAME }
}

fn is_debug_library() -> bool {
    std::env::var_os("CARGO_FEATURE_FINE_LOG").is_some()
}

/// Tells the banner which release this is and when it was built. The same names as the original's
/// build: `PRJ_RELEASE`, 0 (the default) for a snapshot; the date of a reproducible build is
/// `SOURCE_DATE_EPOCH`, in seconds since 1970.
fn identify() {
    println!("cargo:rerun-if-env-changed=PRJ_RELEASE");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let release = std::env::var("PRJ_RELEASE").unwrap_or_else(|_| "0".into());
    let number = release.parse::<u32>();
    let number = number.unwrap_or_else(|error| panic!("PRJ_RELEASE={release}: {error}"));
    let kind = if number == 0 { "Development Snapshot" } else { "Release" };
    let date = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => date(&epoch),
        Err(_) => "an unknown date".into(),
    };
    println!("cargo:rustc-env=VMA_RELEASE={number}");
    // The library that can log more says so.
    let mark = if is_debug_library() { " -*- DEBUG -*-" } else { "" };
    println!("cargo:rustc-env=VMA_BUILD={kind} built on {date}{mark}");
}

/// As C's `__DATE__ __TIME__` write it: `Nov 22 2026 03:04:05`, in UTC.
fn date(epoch: &str) -> String {
    let output = Command::new("date")
        .args(["--utc", &format!("--date=@{epoch}"), "+%b %e %Y %H:%M:%S"])
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("cannot run date: {error}"));
    assert!(output.status.success(), "SOURCE_DATE_EPOCH={epoch} is not a time");
    String::from_utf8(output.stdout).expect("a date is ASCII").trim().to_owned()
}
