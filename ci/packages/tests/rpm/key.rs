//! A key to sign with, in a keyring of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use packages::Run;

use crate::scratch::Scratch;

pub struct Key(Scratch);

impl Key {
    pub const NAME: &str = "libvma-test@localhost";

    pub fn new() -> Key {
        let folder = Scratch::new();
        fs::set_permissions(&*folder, fs::Permissions::from_mode(0o700)).expect("ours");
        Command::new("gpg")
            .args(["--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""])
            .args(["--quick-generate-key", Key::NAME, "rsa2048", "sign", "never"])
            .env("GNUPGHOME", &*folder)
            .succeeds();
        Key(folder)
    }

    /// What GNUPGHOME is to be.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // The agent that gpg started.
        let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", &*self.0).status();
    }
}
