//! Compiles the XDP program with clang and leaves the object in `OUT_DIR`.

use std::env;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/steer.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let out_dir = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
        // Debian keeps <asm/types.h> in the host's multiarch directory, where
        // clang does not look when it compiles for bpf.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .args(["-c", SOURCE, "-o"])
        .arg(Path::new(&out_dir).join("steer.bpf.o"))
        .status()
        .expect("clang compiles the XDP program; ci/setup installs it");
    assert!(status.success(), "clang could not compile {SOURCE}");
}
