//! ssh: a server that hands each connection to a new program, which it starts with the inherited
//! socket; a session and a copied file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::family::Family;
use crate::harness::{Ends, Library, Shown, Side, installed};

use super::curl::{assert_same, random_file};

#[track_caller]
fn key(path: &Path) {
    let output = Command::new(installed("ssh-keygen"))
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// sshd on port 2222 with keys of its own, for root.
#[track_caller]
fn start(ends: &Ends, address: IpAddr) -> Shown {
    let dir = ends.net.dir.display();
    key(&ends.net.file("host_key"));
    key(&ends.net.file("user_key"));
    std::fs::copy(ends.net.file("user_key.pub"), ends.net.file("authorized_keys")).unwrap();
    // Debian's sshd drops its privileges in there, and does not make it itself.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let configuration = format!(
        "Port 2222\nListenAddress {address}\nHostKey {dir}/host_key\nPidFile none\nUsePAM no\n\
         PermitRootLogin yes\nStrictModes no\nPasswordAuthentication no\n\
         AuthorizedKeysFile {dir}/authorized_keys\nSubsystem sftp internal-sftp\n"
    );
    let path = ends.net.file("sshd_config");
    std::fs::write(&path, configuration).unwrap();
    // sshd wants to be called by its full path, to start itself again.
    let sshd = PathBuf::from("/usr/sbin").join(installed("sshd"));
    let server = ends.server(sshd.to_str().unwrap()).args("-D -e -f").arg(path.to_str().unwrap());
    let server = server.start_shown();
    ends.net.wait_for_listener(Side::A, 2222);
    server
}

#[track_caller]
fn ssh(family: Family, library: Library) {
    let ends = family.ends(library);
    let host = family.of(Side::A);
    let watch = ends.watch_with_inherited();
    let server = start(&ends, host);
    let dir = ends.net.dir.display();
    let options = format!(
        "-F none -i {dir}/user_key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o BatchMode=yes -o ConnectTimeout=15 -o LogLevel=ERROR"
    );
    let ssh = || ends.client("ssh").args("-p 2222").args(&options).arg(&format!("root@{host}"));
    ssh().arg("true").run().ok();
    ssh().arg("echo from the session; exit 0").run().says("from the session");
    let refused = ssh().arg("exit 7").run();
    assert_eq!(refused.status.code(), Some(7), "{}\n{}", refused.stdout, refused.stderr);

    let (source, there, back) =
        (ends.net.file("file"), ends.net.file("there"), ends.net.file("back"));
    random_file(&source, 16 << 20, 6);
    let scp = || ends.client("scp").args("-P 2222").args(&options);
    let remote = format!("root@[{host}]:{}", there.display());
    scp().arg(source.to_str().unwrap()).arg(&remote).run().ok();
    assert_same(&source, &there);
    scp().arg(&remote).arg(back.to_str().unwrap()).run().ok();
    assert_same(&source, &back);
    // scp's connection is that of a child, ssh, which it starts anew.
    watch.still(5);
    drop(server);
}

// covers: NET-03, API-34
#[test]
fn sshd_with_library() {
    ssh(Family::Ipv4, Library::Server);
}

// covers: NET-03
#[test]
fn ssh_with_library() {
    ssh(Family::Ipv4, Library::Client);
}

// covers: NET-03, API-34
#[test]
fn ssh_and_sshd_with_library() {
    ssh(Family::Ipv4, Library::Both);
}

// covers: NET-03, API-34
#[test]
fn ssh_and_sshd_over_ipv6_with_library() {
    ssh(Family::Ipv6, Library::Both);
}
