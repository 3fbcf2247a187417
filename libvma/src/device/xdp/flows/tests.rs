use libvma_dev::grant::{Answer, Request, kind};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use zerocopy::IntoBytes;

use super::*;
use crate::sys::Fd;

/// Peers without a room of their own are as many as somebody likes, and send as many frames.
#[test]
fn the_daemon_is_asked_once_for_a_stranger() {
    let (kind_of, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let ends = rustix::net::socketpair(AddressFamily::UNIX, kind_of, flags, None);
    let (ours, daemons) = ends.expect("a pair");
    let daemon = std::thread::spawn(move || {
        let mut asked = Vec::new();
        let mut bytes = [0; 200];
        while let Ok((len @ 1.., _)) =
            rustix::net::recv(&daemons, bytes.as_mut_slice(), RecvFlags::empty())
        {
            let request = Request::of_message(&bytes[..len]).expect("a request");
            assert_eq!(request.kind, kind::STRANGER);
            asked.push(request.source);
            let answer = Answer::done();
            rustix::net::send(&daemons, answer.as_bytes(), SendFlags::NOSIGNAL).expect("it hears");
        }
        asked
    });
    let mut granted = GrantedFlows::new(Grant::by(Fd::adopt_briefly(ours).expect("a descriptor")));
    let peer = |n: u32| Ipv6Addr::from((0xfd00_u128 << 112) | u128::from(n));
    for n in (0..MOST_STRANGERS).chain(0..MOST_STRANGERS + 10) {
        assert_eq!(granted.is_closed_to_strangers(), granted.strangers.len() == 1024);
        granted.tell_stranger(peer(n));
    }
    let flows = Flows::Granted(granted);
    assert!(flows.is_closed_to_strangers());
    drop(flows);
    let asked = daemon.join().expect("it ends");
    let wanted: Vec<_> = (0..MOST_STRANGERS).map(|n| peer(n).octets()).collect();
    assert_eq!(asked, wanted);
}
