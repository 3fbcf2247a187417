//! Compiles the programs for BPF that `vmad` gives to processes without privileges: those of the library.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = "../libvma/src/device/xdp/bpf";
    println!("cargo:rerun-if-changed={folder}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // As in libvma/build.rs, which says why.
    let status = Command::new(&clang)
        .args(["-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-c"])
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg(format!("{folder}/granted.bpf.c"))
        .arg("-o")
        .arg(out.join("granted.bpf.o"))
        .status()
        .unwrap_or_else(|error| {
            panic!("cannot run {clang}: {error}; install clang (ci/setup does) or set CLANG")
        });
    assert!(status.success(), "{clang} could not compile granted.bpf.c");
}
