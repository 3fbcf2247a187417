//! Which ring serves which socket.

use super::Spec::{Latency, Memcached, MemcachedInterrupt, MultiRing, UltraLatency};
use super::{Kind, Param, Show, Spec, param};
use crate::config::value::{COUNT, Choice, choice, number};

const LOGIC: &[Choice] = &[
    choice(0, &["interface"], "Ring per interface"),
    choice(1, &["address"], "Ring per ip address"),
    choice(10, &["socket"], "Ring per socket"),
    choice(20, &["thread"], "Ring per thread"),
    choice(30, &["core"], "Ring per core"),
    choice(31, &["core-attached"], "Ring per core - attach threads"),
];

const LOGIC_SPECS: &[(Spec, &str)] =
    &[(Memcached, "31"), (MemcachedInterrupt, "31"), (MultiRing, "20")];

const ONE_RING: &str =
    "an interface has one ring per process, with all its queues, which all sockets share";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_RING_ALLOCATION_LOGIC_TX", Kind::Choice(LOGIC), "0", "Ring allocation logic TX", "How what is sent is spread over rings")
        .formerly(&["XLIO_RING_ALLOCATION_LOGIC_TX"]).spec(LOGIC_SPECS).no_meaning(ONE_RING),
    param("VMA_RING_ALLOCATION_LOGIC_RX", Kind::Choice(LOGIC), "0", "Ring allocation logic RX", "How what is received is spread over rings")
        .spec(LOGIC_SPECS).no_meaning(ONE_RING),
    param("VMA_RING_MIGRATION_RATIO_TX", number(-1, i32::MAX as i64), "100", "Ring migration ratio TX", "Sends after which a socket may move to its thread's ring; -1 never")
        .formerly(&["VMA_RING_MIGRATION_RATIO"]).no_meaning(ONE_RING),
    param("VMA_RING_MIGRATION_RATIO_RX", number(-1, i32::MAX as i64), "100", "Ring migration ratio RX", "Receives after which a socket may move to its thread's ring; -1 never")
        .no_meaning(ONE_RING),
    param("VMA_RING_LIMIT_PER_INTERFACE", COUNT, "0", "Ring limit per interface", "Most rings of an interface; 0 any number")
        .show(Show::Zero("no limit")).no_meaning(ONE_RING),
    param("VMA_RING_DEV_MEM_TX", crate::config::value::size(0, 1 << 20), "0", "Ring On Device Memory TX", "Bytes of the adapter's own memory per ring, for what is too big to go inline")
        .spec(&[(UltraLatency, "16384"), (Latency, "16384")])
        .verbs("AF_XDP cannot reach the adapter's memory"),
    param("VMA_TCP_MAX_SYN_RATE", number(0, 100_000), "0", "TCP max syn rate", "New connections per second and listener; 0 no limit")
        .show(Show::Zero("no limit")),
];
