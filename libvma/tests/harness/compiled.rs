//! C programs of the tests, each compiled once: test processes that come later, in this run or another
//! one, find the program below `<target>/tmp/compiled`, by a hash of all that it is made of.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FlockOperation;

use super::{Namespaces, wait_for};

/// Compiles a C program into the directory of the test; `options` go before the source, as `-static`.
#[track_caller]
pub fn compile(net: &Namespaces, name: &str, source: &str, options: &[&str]) -> PathBuf {
    compile_in(&net.dir, name, source, options)
}

/// The same into any directory.
#[track_caller]
pub fn compile_in(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let always = ["-O1", "-Wall", "-pthread"];
    let options: Vec<&str> = always.iter().chain(options).copied().collect();
    let built = built(name, &options, &[source.as_bytes()], |program| {
        let code = program.with_extension("c");
        std::fs::write(&code, source).expect("a source file");
        run_compiler(&options, program, std::slice::from_ref(&code));
        let _ = std::fs::remove_file(code);
    });
    let program = dir.join(name);
    std::fs::copy(built, &program).expect("a copy of the program");
    wait_for("the program is there", || program.exists().then_some(()));
    program
}

/// Compiles a C program of these files; it stays where it is.
#[track_caller]
pub fn compile_once(
    name: &str,
    options: &[&str],
    sources: &[PathBuf],
    headers: &[PathBuf],
) -> PathBuf {
    let mut sources = sources.to_vec();
    sources.sort();
    let mut files: Vec<&PathBuf> = sources.iter().chain(headers).collect();
    files.sort();
    let texts: Vec<Vec<u8>> =
        files.iter().map(|file| std::fs::read(file).expect("a source file")).collect();
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    built(name, options, &texts, |program| run_compiler(options, program, &sources))
}

#[track_caller]
fn run_compiler(options: &[&str], program: &Path, sources: &[PathBuf]) {
    let output = Command::new("cc")
        .args(options)
        .arg("-o")
        .arg(program)
        .args(sources)
        .output()
        .expect("a C compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program of this name, options and sources; `make` writes it to the path that it gets unless
/// it is there.
#[track_caller]
fn built(name: &str, options: &[&str], texts: &[&[u8]], make: impl FnOnce(&Path)) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    std::fs::create_dir_all(&folder).expect("a folder for programs");
    let mut hasher = DefaultHasher::new();
    (options, texts).hash(&mut hasher);
    let program = folder.join(format!("{name}-{:016x}", hasher.finish()));
    if program.exists() {
        return program;
    }
    // Another test process that wants the same program waits for this one's.
    let lock = File::create(folder.join(format!("{name}.lock"))).expect("a lock file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("flock");
    if !program.exists() {
        let new = folder.join(format!("{name}.new"));
        make(&new);
        std::fs::rename(&new, &program).expect("the program is put in place");
    }
    program
}
