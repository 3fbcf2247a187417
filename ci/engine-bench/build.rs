//! Compiles the C side of the lwIP contestant and links it with Debian's liblwip.

fn main() {
    println!("cargo::rerun-if-changed=src/lwip.c");
    cc::Build::new()
        .file("src/lwip.c")
        .include("/usr/include/lwip")
        .flag("-Wno-unused-parameter")
        .compile("lwip_endpoints");
    println!("cargo::rustc-link-lib=dylib=lwip");
}
