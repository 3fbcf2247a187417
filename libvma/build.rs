//! Compiles the steering program for BPF and gives the shared object its name.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = "src/device/xdp/bpf/steer.bpf.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-env-changed=CLANG");

    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let object = out.join("steer.bpf.o");
    let status = Command::new(&clang)
        .args(["-O2", "-target", "bpf", "-Wall", "-Werror"])
        // <linux/types.h> reaches for <asm/types.h>, which Debian keeps per architecture.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status()
        .unwrap_or_else(|error| {
            panic!("cannot run {clang}: {error}; install clang (ci/setup does) or set CLANG")
        });
    assert!(status.success(), "{clang} could not compile {source}");

    // rustc sets no soname. NODELETE: after the first offloaded socket a thread of ours runs
    // in the library's text, so a dlclose() must not unmap it. NOW: a symbol resolved in a
    // signal handler would take the loader's lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{}", libvma_dev::SONAME);
    for argument in ["-Wl,-z,nodelete", "-Wl,-z,now"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    let epoch = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_default();
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rustc-env=VMA_BUILD_EPOCH={epoch}");
}
