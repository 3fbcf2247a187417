//! Bells of threads, on their way to the peer.

use super::*;

fn numbers(side: &Side) -> Vec<u32> {
    side.host.bells.iter().map(|(_, number, _)| *number).collect()
}

#[test]
fn bells_of_threads_reach_the_peer_up_to_a_limit() {
    let ((mut called, mut caller, _), link, bell) = (linked(), 1, event().unwrap());
    for number in BELLS {
        caller.rendezvous.give_bell(link, number, &bell).unwrap();
        called.rendezvous.serve_all(&mut called.host, 0);
    }
    for number in [0, BELLS.end, u32::MAX] {
        assert_eq!(caller.rendezvous.give_bell(link, number, &bell), Err(Errno::MFILE));
    }
    assert!(numbers(&called).into_iter().eq(BELLS) && called.host.ended.is_empty());
}

#[test]
fn a_bell_that_is_sent_again_counts_once() {
    let ((mut called, mut caller, _), link, bell) = (linked(), 1, event().unwrap());
    for _ in 0..2 * MOST_BELLS {
        caller.rendezvous.give_bell(link, 1, &bell).unwrap();
        called.rendezvous.serve_all(&mut called.host, 0);
    }
    caller.rendezvous.give_bell(link, 2, &bell).unwrap();
    called.rendezvous.serve_all(&mut called.host, 0);
    assert!(numbers(&called).contains(&2));
}

#[test]
fn a_bell_for_which_there_was_no_descriptor_ends_no_link() {
    let ((mut called, caller, _), link) = (linked(), 1);
    // As the kernel delivers it to a process that may have no more descriptors.
    let of_link = |watched: &&Watched<Fd, u32>| matches!(watched, Watched::Link { link: of, .. } if *of == link);
    let watched = caller.rendezvous.watched.values().find(of_link).unwrap();
    let message = Message::Bell { number: 1 }.emit();
    unix_socket::send(watched.descriptor(), &message, &[]).unwrap();
    called.rendezvous.serve_all(&mut called.host, 0);
    assert!(called.host.bells.is_empty() && called.host.ended.is_empty());
}

#[test]
fn posts_and_links_leave_descriptors_for_bells_and_bells_for_them() {
    let ((_called, mut caller, _), link, bell) = (linked(), 1, event().unwrap());
    let rendezvous = &mut caller.rendezvous;
    // Guests, which are to become links, have used all that there is.
    while rendezvous.afford(LINK).is_ok() {
        let connection = event().unwrap();
        rendezvous.watch(Watched::Guest { connection, until: 0 }).unwrap();
    }
    assert!(rendezvous.give_bell(link, 1, &bell).is_ok());
    rendezvous.expire(&mut caller.host, 0);
    // Links of which each has as many bells as it may have.
    for link in 2..40 {
        let (connection, peer) = (event().unwrap(), ProcessId([link as u8; 16]));
        let bells = Bells { given: 0, taken: u32::MAX >> 2 };
        rendezvous.watch(Watched::Link { connection, peer, link, bells }).unwrap();
    }
    assert_eq!(rendezvous.give_bell(link, 2, &bell), Err(Errno::MFILE));
    assert!(rendezvous.afford(LINK).is_ok());
}
