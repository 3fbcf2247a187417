//! The words that name a network interface: its name, or one of its addresses.

use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;

/// The interface's address, which is what the socket options take. If an interface has several, the
/// first. Whether an address that was given is one of this host, the kernel says when it is used.
pub fn address(word: &str) -> Result<Ipv4Addr, String> {
    if let Ok(address) = word.parse() {
        return Ok(address);
    }
    let all = getifaddrs().map_err(|error| format!("the interfaces are not known: {error}"))?;
    let mut there = false;
    for entry in all.filter(|entry| entry.interface_name == word) {
        there = true;
        let inet = entry.address.as_ref().and_then(|address| address.as_sockaddr_in());
        if let Some(inet) = inet {
            return Ok(inet.ip());
        }
    }
    Err(if there {
        "this interface has no IPv4 address".to_owned()
    } else {
        "no interface has this name, and it is no IPv4 address".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_as_it_is() {
        assert_eq!(address("10.0.0.7"), Ok(Ipv4Addr::new(10, 0, 0, 7)));
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error() {
        for word in ["", "no-such-if0", "10.0.0", "10.0.0.256"] {
            assert!(address(word).unwrap_err().starts_with("no interface has this name"), "{word}");
        }
    }
}
