//! Which Linux runs.

/// Is it this version or a later one?
pub fn is_since(major: u32, minor: u32) -> bool {
    let names = rustix::system::uname();
    version_in(names.release().to_bytes()).is_some_and(|version| version >= (major, minor))
}

/// The first two numbers of uname(2)'s release.
fn version_in(release: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit());
    let mut next = || core::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(version_in(b"5.10.0-46-amd64"), Some((5, 10)));
        assert_eq!(version_in(b"6.12.117+deb12-amd64"), Some((6, 12)));
        assert_eq!(version_in(b"7.0-rc1"), Some((7, 0)));
        assert_eq!((version_in(b"5"), version_in(b"next.1")), (None, None));
        assert!(is_since(4, 18) && !is_since(99, 0));
    }
}
