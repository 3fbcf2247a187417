use libvma_engine::tcp::lookup::FlowKey;

use super::*;
use crate::socket::fixture::{KEY, Tcp};

/// The daemon knows addresses of either family, and no stand-ins.
#[test]
fn the_daemon_is_told_the_real_addresses_of_a_connection() {
    let told = |key: FlowKey| {
        let report = Report { number: 7, key, state: TcpState::CloseWait };
        let message = message(99, &report);
        assert_eq!((message.pid, message.fd), (99, 7));
        assert_eq!(message.state, agent::TcpState::CloseWait);
        (message.local, message.peer)
    };
    let expected = ("10.0.0.1:4000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    assert_eq!(told(KEY), expected);
    let stand_in = |text: &str| libvma_dev::ipv6_stand_ins::of(text.parse().unwrap()).unwrap();
    let (local, remote) = (stand_in("2001:db8::1"), stand_in("2001:db8::2"));
    let expected = ("[2001:db8::1]:4000".parse().unwrap(), "[2001:db8::2]:80".parse().unwrap());
    assert_eq!(told(FlowKey { local, remote, ..KEY }), expected);
}

#[test]
fn connections_are_told_from_when_the_daemon_listens_to_when_they_are_the_kernels() {
    let tcp = Tcp::connected();
    let mut source = Connections(&tcp.stack);
    assert!(source.has_connections());
    let take = |source: &mut Connections<'_>| {
        let mut reports = VecDeque::new();
        source.take(1, &mut reports);
        reports.into_iter().map(|report| (report.fd, report.state)).collect::<Vec<_>>()
    };
    assert_eq!(take(&mut source), []);
    source.listen();
    let number = tcp.raw() as u32;
    assert_eq!(take(&mut source), [(number, agent::TcpState::Established)]);
    withhold(&tcp.stack, tcp.id);
    assert!(source.has_ended());
    assert_eq!(take(&mut source), [(number, agent::TcpState::Closed)]);
    resume(&mut tcp.stack.shard.lock().unwrap(), tcp.id);
    assert_eq!(take(&mut source), [(number, agent::TcpState::Established)]);
    source.stop();
    withhold(&tcp.stack, tcp.id);
    assert_eq!(take(&mut source), []);
}
