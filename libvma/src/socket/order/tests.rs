//! The rules against a model: one sender numbers its datagrams, they go to either queue, and a receiver that
//! does what [`Order`] says gets them in that order.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A datagram comes to our queue, or to the shadow.
    Ours,
    Kernels,
    /// The internal thread, or a poll, sees that the shadow has something.
    Tell,
    /// Another call polls the rings.
    Poll,
    Receive,
    Peek,
    /// A flow becomes the kernel's, or ours again.
    Flip,
}

/// How datagrams come to our queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// By a link: what comes says how many went by the kernel before it.
    Link,
    /// By a wire, whose flow is either ours or not.
    Flow,
}

struct Model {
    way: Way,
    order: Order,
    /// In the rings, and in our queue.
    rings: VecDeque<(u32, Front)>,
    ours: VecDeque<(u32, Front)>,
    shadow: VecDeque<u32>,
    sent: u32,
    /// Since the last by the link.
    by_kernel: u16,
    flow_is_ours: bool,
    peeked: Option<u32>,
    delivered: Vec<u32>,
    ratio: u64,
}

impl Model {
    fn new(way: Way, ratio: u64) -> Model {
        Model {
            way,
            ratio,
            order: Order::default(),
            rings: VecDeque::new(),
            ours: VecDeque::new(),
            shadow: VecDeque::new(),
            sent: 0,
            by_kernel: 0,
            flow_is_ours: true,
            peeked: None,
            delivered: Vec::new(),
        }
    }

    fn send(&mut self, to_kernel: bool) {
        self.sent += 1;
        // A wire's datagrams go where the flow says.
        let to_kernel = if self.way == Way::Flow { !self.flow_is_ours } else { to_kernel };
        if to_kernel {
            self.shadow.push_back(self.sent);
            self.by_kernel += u16::from(self.way == Way::Link);
            return;
        }
        let mut after_kernel = core::mem::take(&mut self.by_kernel);
        if self.way == Way::Link {
            // Those that were read already do not count: see the module's limits.
            after_kernel = after_kernel.min(self.unmarked());
        }
        self.rings.push_back((self.sent, Front { by_link: self.way == Way::Link, after_kernel }));
    }

    /// How many in the shadow no datagram of ours has a mark for yet.
    fn unmarked(&self) -> u16 {
        let marks: u16 =
            self.rings.iter().chain(&self.ours).map(|(_, front)| front.after_kernel).sum();
        (self.shadow.len() as u16).saturating_sub(marks)
    }

    fn poll(&mut self) {
        self.ours.append(&mut self.rings);
    }

    fn flip(&mut self) {
        self.poll();
        let marked = self.ours.iter().any(|(_, front)| front.after_kernel > 0);
        if self.way == Way::Link || marked {
            // Of flows that change twice while nothing is read the order is not known.
            return;
        }
        self.flow_is_ours ^= true;
        match self.flow_is_ours {
            true => self.by_kernel = u16::MAX,
            false => self.order.note_lost_flow(self.ours.len()),
        }
    }

    /// A receive call that does not block, as `socket::receive` makes it.
    fn receive(&mut self, peeked: bool) -> Option<u32> {
        let (mut first, mut just_asked) = (true, false);
        for _ in 0..4 {
            if self.ours.is_empty() || self.order.wants_poll() {
                self.poll();
            }
            self.order.note_poll();
            let view = View {
                front: self.ours.front().map(|(_, front)| *front),
                queued: self.ours.len(),
                is_kernels: false,
                doubtful: false,
                has_local_peers: core::mem::take(&mut first) && self.way == Way::Link,
                just_asked: core::mem::take(&mut just_asked),
                ratio: self.ratio,
            };
            match self.order.next(&view) {
                Turn::Wait => return None,
                Turn::LookAtShadow => {
                    self.order.begin_to_look();
                    self.tell();
                    just_asked = true;
                }
                Turn::TakeOurs => {
                    self.order.took_ours(if peeked { Left::All } else { Left::Nothing });
                    let front = self.ours.front().map(|(number, _)| *number);
                    if !peeked {
                        self.ours.pop_front();
                    }
                    return front;
                }
                Turn::AskKernel => {
                    self.order.begin_to_ask();
                    let Some(number) = self.shadow.front().copied() else {
                        self.order.found_empty();
                        just_asked = true;
                        continue;
                    };
                    self.order.took_kernels(1, peeked);
                    if !peeked {
                        self.shadow.pop_front();
                        if let Some((_, front)) = self.ours.front_mut()
                            && front.after_kernel != u16::MAX
                        {
                            front.after_kernel = front.after_kernel.saturating_sub(1);
                        }
                    }
                    return Some(number);
                }
            }
        }
        panic!("the call goes round and round");
    }

    fn tell(&mut self) {
        if !self.shadow.is_empty() {
            self.order.note_readable();
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ours => self.send(false),
            Step::Kernels => self.send(true),
            Step::Tell => self.tell(),
            Step::Poll => self.poll(),
            Step::Flip => self.flip(),
            Step::Peek => {
                let told = self.receive(true);
                let before = self.peeked.take();
                assert!(before.is_none() || before == told, "{before:?} was told, then {told:?}");
                self.peeked = told;
            }
            Step::Receive => {
                let got = self.receive(false);
                if let Some(told) = self.peeked.take() {
                    assert_eq!(got, Some(told), "was told");
                }
                self.delivered.extend(got);
            }
        }
    }

    /// Nothing is left behind, and all came in the order in which it was sent.
    fn end(mut self) {
        for _ in 0..=self.sent {
            self.tell();
            self.step(Step::Receive);
        }
        assert!(self.ours.is_empty() && self.shadow.is_empty());
        let all: Vec<u32> = (1..=self.sent).collect();
        assert_eq!(self.delivered, all);
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Ours),
        3 => Just(Step::Kernels),
        2 => Just(Step::Tell),
        5 => Just(Step::Receive),
        1 => Just(Step::Poll),
        1 => Just(Step::Peek),
        1 => Just(Step::Flip),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn datagrams_by_a_link_and_by_the_kernel_come_as_they_were_sent(steps in steps(), ratio in 0u64..5) {
        let mut model = Model::new(Way::Link, ratio);
        for step in steps {
            model.step(step);
        }
        model.end();
    }

    #[test]
    fn datagrams_of_a_flow_that_changes_hands_come_as_they_were_sent(steps in steps(), ratio in 0u64..5) {
        let mut model = Model::new(Way::Flow, ratio);
        for step in steps {
            model.step(step);
        }
        model.end();
    }
}

fn view(front: Option<Front>, queued: usize) -> View {
    View {
        front,
        queued,
        is_kernels: false,
        doubtful: false,
        has_local_peers: false,
        just_asked: false,
        ratio: 0,
    }
}

const BY_WIRE: Front = Front { by_link: false, after_kernel: 0 };

#[test]
fn a_shadow_that_never_empties_does_not_keep_ours_waiting() {
    let mut order = Order::default();
    order.note_readable();
    let mut since_ours = 0;
    for _ in 0..200 {
        match order.next(&view(Some(BY_WIRE), 1)) {
            Turn::AskKernel => {
                order.begin_to_ask();
                order.took_kernels(1, false);
                since_ours += 1;
                assert!(since_ours <= usize::from(LONGEST_RUN));
            }
            turn => {
                assert_eq!(turn, Turn::TakeOurs);
                order.took_ours(Left::Nothing);
                since_ours = 0;
            }
        }
    }
}

#[test]
fn a_queue_that_never_empties_does_not_keep_the_shadow_waiting() {
    for by_link in [true, false] {
        let mut order = Order::default();
        order.note_readable();
        let front = Front { by_link, after_kernel: 0 };
        let mut taken = 0;
        while order.next(&view(Some(front), 8)) == Turn::TakeOurs {
            order.took_ours(Left::Nothing);
            taken += 1;
            assert!(taken <= 8);
        }
    }
}

#[test]
fn the_kernel_is_asked_after_so_many_polls() {
    for front in [None, Some(BY_WIRE), Some(Front { by_link: true, after_kernel: 0 })] {
        let mut order = Order::default();
        let view = View { ratio: 10, ..view(front, 1) };
        let asks = |turn| matches!(turn, Turn::AskKernel | Turn::LookAtShadow);
        for _ in 0..9 {
            order.note_poll();
            assert!(!asks(order.next(&view)));
        }
        order.note_poll();
        assert!(asks(order.next(&view)));
        order.begin_to_ask();
        order.found_empty();
        order.note_poll();
        assert!(!asks(order.next(&view)));
    }
}

#[test]
fn an_error_is_asked_for_whatever_is_queued() {
    for front in [None, Some(BY_WIRE), Some(Front { by_link: true, after_kernel: 0 })] {
        let mut order = Order::default();
        order.note_error();
        assert_eq!(order.next(&view(front, 1)), Turn::AskKernel);
        order.begin_to_ask();
        assert!(!order.may_have_error());
    }
}

#[test]
fn of_a_socket_given_to_the_kernel_ours_are_older() {
    let mut order = Order::default();
    order.note_readable();
    let given = View { is_kernels: true, ..view(Some(BY_WIRE), 1) };
    assert_eq!(order.next(&given), Turn::TakeOurs);
    assert_eq!(order.next(&View { front: None, ..given }), Turn::AskKernel);
}

#[test]
fn the_shadow_is_not_asked_again_for_local_peers_once_it_was_found_empty() {
    let mut order = Order::default();
    let none = View { has_local_peers: true, ..view(None, 0) };
    // The first datagram of all may come by the kernel.
    assert_eq!(order.next(&none), Turn::AskKernel);
    order.begin_to_ask();
    order.found_empty();
    order.took_directly();
    assert_eq!(order.next(&none), Turn::AskKernel);
    order.begin_to_ask();
    order.found_empty();
    assert_eq!(order.next(&none), Turn::Wait);
}
