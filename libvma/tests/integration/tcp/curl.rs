//! curl, down and up: every byte of large files.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use crate::harness::{Ends, Library, PYTHON, Side};

use super::nginx;

const MIB: u64 = 1 << 20;

/// A file in which no two places look alike: the same random MiB again and again, with the offset in
/// every 512 bytes.
pub fn random_file(path: &Path, len: u64, seed: u64) {
    // xorshift64
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = vec![0; 1 << 20];
    for word in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let mut file = File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut at = 0;
    while at < len {
        for (n, sector) in block.chunks_exact_mut(512).enumerate() {
            sector[..8].copy_from_slice(&(at + n as u64).to_le_bytes());
        }
        let part = block.len().min((len - at) as usize);
        file.write_all(&block[..part]).unwrap();
        at += part as u64;
    }
}

/// Panics unless both files have the same bytes.
#[track_caller]
pub fn assert_same(sent: &Path, got: &Path) {
    let open = |path: &Path| {
        let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let len = file.metadata().unwrap().len();
        (file, len)
    };
    let ((mut sent, sent_len), (mut got, got_len)) = (open(sent), open(got));
    assert_eq!(got_len, sent_len, "bytes that arrived, bytes that were sent");
    let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < sent_len {
        let len = one.len().min((sent_len - at) as usize);
        sent.read_exact(&mut one[..len]).unwrap();
        got.read_exact(&mut other[..len]).unwrap();
        if one[..len] != other[..len] {
            let n = (0..len).find(|n| one[*n] != other[*n]).unwrap();
            panic!("byte {} of {sent_len} differs", at + n as u64);
        }
        at += len as u64;
    }
}

#[track_caller]
fn download(library: Library, len: u64, sendfile: bool) {
    let ends = Ends::new(library);
    let watch = ends.watch();
    let server = nginx::start(&ends, false, sendfile);
    let (source, target) = (ends.net.file("www/file"), ends.net.file("got"));
    random_file(&source, len, 2);
    let words = "-sS --max-time 55 http://10.99.0.1:8080/file -w %{speed_download} -o";
    let client = ends.client("curl").args(words).arg(target.to_str().unwrap()).run().ok();
    println!("{library:?}: {} bytes a second", client.stdout);
    watch.still(1);
    assert_same(&source, &target);
    drop(server);
}

/// To Python's http.server, which curl asks with `Expect: 100-continue`; both ways.
#[track_caller]
fn upload(library: Library) {
    let ends = Ends::new(library);
    let watch = ends.watch();
    let (script, source, target) =
        (ends.net.file("server.py"), ends.net.file("file"), ends.net.file("got"));
    std::fs::write(&script, include_str!("http_server.py")).unwrap();
    random_file(&source, 64 * MIB, 3);
    let server =
        ends.server(PYTHON).arg(script.to_str().unwrap()).args("10.99.0.1 8000").start_shown();
    ends.net.wait_for_listener(Side::A, 8000);
    let client = ends.client("curl").args("-sS --max-time 55 -T").arg(source.to_str().unwrap());
    client.arg("http://10.99.0.1:8000/got").run().says("stored 67108864");
    assert_same(&source, &target);
    let again = ends.net.file("again");
    let client = ends.client("curl").args("-sS --max-time 55 http://10.99.0.1:8000/got -o");
    client.arg(again.to_str().unwrap()).run().ok();
    assert_same(&source, &again);
    watch.still(2);
    drop(server);
}

// covers: API-09, NET-03
#[test]
fn curl_downloads_1_gib_with_library_on_both_ends() {
    download(Library::Both, 1024 * MIB, true);
}

// covers: API-09, NET-03
#[test]
fn curl_downloads_by_sendfile_server_with_library() {
    download(Library::Server, 64 * MIB, true);
}

// covers: NET-03
#[test]
fn curl_downloads_by_writev_server_with_library() {
    download(Library::Server, 64 * MIB, false);
}

// covers: NET-03
#[test]
fn curl_downloads_client_with_library() {
    download(Library::Client, 64 * MIB, true);
}

// covers: NET-03
#[test]
fn curl_uploads_server_with_library() {
    upload(Library::Server);
}

// covers: NET-03
#[test]
fn curl_uploads_client_with_library() {
    upload(Library::Client);
}

// covers: NET-03
#[test]
fn curl_uploads_with_library_on_both_ends() {
    upload(Library::Both);
}
