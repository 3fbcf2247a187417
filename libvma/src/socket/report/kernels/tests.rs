use super::*;
use crate::socket::fixture::{ANY_PORT, Tcp, Udp};

/// A bound socket that was the kernel's from the start.
fn entered(udp: &Udp) -> KernelsId {
    shadow::bind(udp.raw(), ANY_PORT).unwrap();
    enter(&udp.stack, Before::nothing(udp.raw(), false, WhyOs::Short)).unwrap()
}

#[test]
fn a_socket_is_told_of_until_its_last_number_is_closed() {
    let udp = Udp::new();
    let id = entered(&udp);
    assert!(duplicate(&udp.stack, id, i32::MAX));
    traffic(&udp.stack, id).unwrap().received(Ok(100));
    forget(&udp.stack, id, udp.raw());
    assert!(why(&udp.stack, id).is_some(), "the other number is left");
    forget(&udp.stack, id, i32::MAX);
    assert!(why(&udp.stack, id).is_none() && !duplicate(&udp.stack, id, 8));
    assert_eq!(udp.stack.ended.lock().unwrap().rx_os_bytes, 100, "the sum goes on");
    assert!(
        enter(
            &udp.stack,
            Before { descriptors: vec![], ..Before::nothing(1, false, WhyOs::Short) }
        )
        .is_none()
    );
}

/// A place is used again, with what its former socket has counted in it.
#[test]
fn a_socket_in_a_former_ones_place_counts_from_zero() {
    let udp = Udp::new();
    let first = entered(&udp);
    traffic(&udp.stack, first).unwrap().received(Ok(100));
    forget(&udp.stack, first, udp.raw());
    let second = enter(&udp.stack, Before::nothing(udp.raw(), false, WhyOs::Short)).unwrap();
    assert_eq!(first.slot(), second.slot());
    assert_ne!(first, second, "the old name finds nothing");
    assert!(why(&udp.stack, first).is_none());
    assert_eq!(tell(&udp.stack, second).unwrap().counters, Counters::default());
    traffic(&udp.stack, second).unwrap().received(Ok(7));
    assert_eq!(leave(&udp.stack, second).unwrap().rx_os_bytes, 7);
    assert!(leave(&udp.stack, second).is_none());
}

#[test]
fn a_number_that_means_another_file_by_now_ends_the_socket() {
    let (udp, other) = (Udp::new(), Udp::new());
    let id = entered(&udp);
    let told = tell(&udp.stack, id).unwrap();
    assert_eq!((told.local, told.local_port), ([127, 0, 0, 1], udp.address().port()));
    assert_eq!(told.kind, libc::SOCK_DGRAM as u32);
    assert_eq!(stats::read_text(&told.reason), WhyOs::Short.to_string());
    // dup2() by code that no call of the library's sees.
    let mut list = udp.stack.kernels.list.lock().unwrap();
    list.find(id).unwrap().descriptors = vec![other.raw()];
    drop(list);
    assert!(tell(&udp.stack, id).is_none());
    assert!(why(&udp.stack, id).is_none());
}

#[test]
fn named_sockets_count_anew_and_the_others_go_on() {
    let udp = Udp::new();
    let id = entered(&udp);
    let bytes = || tell(&udp.stack, id).unwrap().counters.tx_os_bytes;
    traffic(&udp.stack, id).unwrap().sent(Ok(9));
    // The socket was served before it became the kernel's.
    let served = |counters: &mut Counters| counters.tx_packets += 3;
    served(&mut udp.stack.kernels.list.lock().unwrap().find(id).unwrap().was.counters);
    set_to_zero(&udp.stack, &[udp.raw() + 1]);
    assert_eq!(bytes(), 9);
    assert_eq!(tell(&udp.stack, id).unwrap().counters.tx_packets, 3);
    set_to_zero(&udp.stack, &[udp.raw()]);
    assert_eq!(tell(&udp.stack, id).unwrap().counters.tx_packets, 0);
    assert_eq!((bytes(), udp.stack.ended.lock().unwrap().tx_os_bytes), (0, 9));
    traffic(&udp.stack, id).unwrap().sent(Ok(4));
    let (_, sum) = all(&udp.stack);
    assert_eq!((bytes(), sum.tx_os_bytes), (4, 13));
}

/// The socket is about to be shared with another process, or a stdio stream reads it.
#[test]
fn a_socket_that_is_kept_is_no_candidate_any_more() {
    let tcp = Tcp::new();
    let candidate = || tcp.with(|_, socket| Candidate::connecting(socket)).map(Box::new);
    let enter_one = || {
        let before = Before::nothing(tcp.raw(), true, WhyOs::Attaching);
        enter(&tcp.stack, before.with(candidate())).unwrap()
    };
    assert!(!has_candidates(&tcp.stack));
    let (first, second) = (enter_one(), enter_one());
    let is_one = |id| with_candidate(&tcp.stack, id, |_, numbers| numbers.to_vec());
    assert!(has_candidates(&tcp.stack));
    assert_eq!((is_one(first), is_one(second)), (Some(vec![tcp.raw()]), Some(vec![tcp.raw()])));
    keep(&tcp.stack, first);
    assert_eq!((is_one(first).is_some(), is_one(second).is_some()), (false, true));
    keep_all(&tcp.stack);
    assert!(is_one(second).is_none());
    let gate = &traffic(&tcp.stack, second).unwrap().gate;
    assert!(gate.close().is_none(), "nobody takes it over");
}

/// Only a connection that began while its interface was being attached may be taken over.
#[test]
fn a_detached_socket_tells_whether_it_may_come_back() {
    let of = |why| {
        let tcp = Tcp::new();
        let before = of_socket(&tcp.stack, tcp.id, why);
        before.map(|before| (before.why, before.candidate.is_some(), before.model.is_some()))
    };
    assert_eq!(of(WhyOs::Attaching), Some((WhyOs::Attaching, true, false)));
    assert_eq!(of(WhyOs::Route), Some((WhyOs::Route, false, false)));
    assert_eq!(of(WhyOs::ProcessEnds), None, "nobody asks any more");
    let listener = Tcp::listening();
    let before = of_socket(&listener.stack, listener.id, WhyOs::Passed).unwrap();
    assert!(before.model.is_some(), "children inherit it");
    let id = enter(&listener.stack, before).unwrap();
    assert!(inherited_model(&listener.stack, id).is_some());
    forget_model(&listener.stack, id);
    assert!(inherited_model(&listener.stack, id).is_none());
    assert!(matches!(why(&listener.stack, id), Some((WhyOs::Passed, None))));
}
