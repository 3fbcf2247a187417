//! The Extra API, by C programs that are compiled with the header of libvma-dev.
//!
//! `table` is the table and its functions without packets, `counted` what statistics tell of packets, `dummy` sends that put nothing on the wire, `examples` those of libvma-dev,
//! `filter` receive callbacks, `lend` packets without a copy, `held` packets of either that the program keeps, `stamps` the times at which packets came, `xtreme` completions.

mod counted;
mod dummy;
mod examples;
mod filter;
mod held;
mod lend;
mod stamps;
mod table;
mod xtreme;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::harness::{Namespaces, Program, Side, compile_in};

/// A program of this folder, compiled into the directory of the test.
#[track_caller]
fn compiled(dir: &Path, name: &str, source: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let include = package.join("../libvma-dev/include");
    let common = package.join("tests/integration/extra");
    // A program is compiled anew when a header changes.
    let mut hasher = DefaultHasher::new();
    let headers =
        [include.join("mellanox/vma_extra.h"), common.join("extra.h"), common.join("view.h")];
    for header in headers {
        std::fs::read(header).expect("a header").hash(&mut hasher);
    }
    let options = [
        format!("-DHEADERS={}", hasher.finish()),
        format!("-I{}", include.display()),
        format!("-I{}", common.display()),
        "-Wextra".to_owned(),
        "-D_GNU_SOURCE".to_owned(),
        // So that what a program defines counts for the library, too.
        "-rdynamic".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    compile_in(dir, name, source, &options)
}

/// A program of this folder on side A, without the library.
#[track_caller]
fn program<'a>(net: &'a Namespaces, name: &str, source: &str) -> Program<'a> {
    net.program(Side::A, compiled(&net.dir, name, source).to_str().expect("text"))
}
