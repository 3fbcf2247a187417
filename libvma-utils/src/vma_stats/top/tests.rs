//! Screens of scripted processes, compared with those in `screens/`.

use libvma_dev::stats::{
    Drop, OFFLOADED, POOL_RX, POOL_TX, Pool, RING_SHM, RING_XDP, Ring, Socket, Taken, Tcp,
    WITHIN_HOST, text,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::state::Presence;
use super::*;

const SECOND: u64 = 1_000_000_000;

fn socket(descriptor: i32, kind: u32, flags: u32) -> Socket {
    Socket {
        used: 1,
        descriptor,
        inode: descriptor as u64,
        kind,
        flags,
        local: [192, 168, 100, 1],
        local_port: 11_111,
        ..Socket::default()
    }
}

/// A server: TCP by the device, UDP by the kernel, TCP within the host.
fn server() -> Sample {
    let mut tcp = socket(7, 1, OFFLOADED);
    (tcp.tcp_state, tcp.peer, tcp.peer_port) = (1, [192, 168, 100, 102], 54_321);
    tcp.tcp = Tcp { round_trip: 35, ..Tcp::default() };
    (tcp.ready_packets, tcp.ready_bytes, tcp.unsent_bytes) = (3, 4_344, 1_448);
    let mut kernel = socket(8, 2, 0);
    kernel.reason = text("a rule of libvma.conf says so");
    let mut host = socket(9, 1, OFFLOADED | WITHIN_HOST);
    (host.tcp_state, host.peer, host.peer_port) = (8, [192, 168, 100, 1], 40_000);
    host.tcp = Tcp { round_trip: 2, ..Tcp::default() };

    let mut before = Taken { sockets: vec![tcp, kernel, host], ..Taken::default() };
    before.snapshot.taken = SECOND;
    (before.snapshot.sockets_open, before.snapshot.sockets_hidden) = (5, 2);
    before.snapshot.epolls[0].used = 1;
    before.snapshot.epolls[0].calls.polling_cpu = 87;
    before.snapshot.rings[0] =
        Ring { kind: RING_XDP, name: text("eth0"), buffers: 2048, ..Ring::default() };
    before.snapshot.rings[1] = Ring { kind: RING_SHM, buffers: 64, ..Ring::default() };
    before.snapshot.pools =
        [(POOL_RX, 4096), (POOL_TX, 512)].map(|(kind, free)| Pool { kind, free, no_buffers: 0 });
    before.snapshot.drops[4] = Drop { reason: text("no_socket"), count: 10 };

    // Two seconds later, which are one cycle.
    let mut taken = before.clone();
    let snapshot = &mut taken.snapshot;
    snapshot.taken = 3 * SECOND;
    (snapshot.totals.rx_packets, snapshot.totals.rx_bytes) = (3_000_000, 3_000_000_000);
    snapshot.drops[4].count = 70;
    (snapshot.rings[0].rx_packets, snapshot.rings[0].rx_bytes) = (2_000_000, 2_600_000_000);
    snapshot.rings[0].tx_packets = 80;
    (snapshot.rings[1].tx_packets, snapshot.rings[1].tx_dropped) = (500, 4);
    let [tcp, kernel, host] = &mut taken.sockets[..] else { unreachable!() };
    let counters = &mut tcp.counters;
    (counters.rx_packets, counters.rx_bytes) = (2_000_000, 2_600_000_000);
    (counters.tx_packets, counters.tx_bytes, counters.tx_retransmissions) = (80, 4_000, 5);
    (counters.rx_poll_hits, counters.rx_poll_misses) = (1_995, 5);
    (kernel.counters.rx_os_packets, kernel.counters.rx_os_bytes) = (24, 2_400);
    (kernel.counters.rx_dropped_packets, kernel.counters.rx_dropped_bytes) = (60, 6_000);
    (host.counters.tx_packets, host.counters.tx_bytes) = (500, 5_000_000_000);
    Sample { process: 4242, name: "sockperf".to_owned(), taken, before: Some(before) }
}

fn client() -> Sample {
    let mut before = Taken { sockets: vec![socket(4, 2, OFFLOADED)], ..Taken::default() };
    before.snapshot.taken = SECOND;
    before.snapshot.sockets_open = 1;
    let mut taken = before.clone();
    taken.snapshot.taken = 2 * SECOND;
    taken.snapshot.totals.tx_packets = 15;
    (taken.sockets[0].counters.tx_packets, taken.sockets[0].counters.tx_bytes) = (15, 1_500);
    Sample {
        process: 77,
        name: "a\x1b[31m very long name of a client".to_owned(),
        taken,
        before: Some(before),
    }
}

/// Twenty of them, and rings.
fn many() -> Vec<Sample> {
    let mut samples: Vec<Sample> =
        (0..6).map(|n| Sample { process: 100 + n, ..client() }).collect();
    let first = &mut samples[0];
    for n in 0..20 {
        let mut socket = socket(10 + n, 2, OFFLOADED);
        first.before.as_mut().unwrap().sockets.push(socket);
        socket.counters.rx_packets = 100 - n as u64;
        first.taken.sockets.push(socket);
    }
    for n in 0..9 {
        first.taken.snapshot.rings[n] =
            Ring { kind: RING_XDP, name: text(&format!("eth{n}")), ..Ring::default() };
    }
    samples
}

fn state(samples: &[Sample]) -> State {
    let mut state = State::new(Duration::from_secs(1));
    state.update(samples);
    state
}

fn draw(state: &mut State, width: u16, height: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::screen(state, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().clone()
}

fn lines(screen: &TestBackend) -> String {
    let buffer = screen.buffer();
    let mut text = String::new();
    for row in buffer.content().chunks(buffer.area.width.into()) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// With VMA_WRITE_SCREENS the screens of the present are written instead, to be looked at.
fn compare(name: &str, state: &mut State, width: u16, height: u16) {
    let screen = lines(&draw(state, width, height));
    let path = format!("{}/src/vma_stats/top/screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("VMA_WRITE_SCREENS").is_some() {
        std::fs::write(&path, &screen).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(screen == expected, "{name}:\n{screen}\nexpected:\n{expected}");
}

fn descriptors(state: &State) -> Vec<i32> {
    state.rows.sockets.iter().map(|socket| socket.key.1).collect()
}

#[test]
fn a_small_screen_shows_what_matters() {
    compare("small", &mut state(&[server(), client()]), 80, 24);
}

#[test]
fn a_wide_screen_shows_all_columns() {
    compare("wide", &mut state(&[server(), client()]), 160, 24);
}

#[test]
fn the_kernels_socket_tells_why() {
    let mut state = state(&[server(), client()]);
    state.press(Key::ByDrops);
    compare("kernel", &mut state, 100, 30);
}

#[test]
fn the_chosen_socket_tells_what_the_program_holds() {
    let mut sample = server();
    let held = |sample: &Sample| lines(&draw(&mut state(std::slice::from_ref(sample)), 100, 30));
    assert!(!held(&sample).contains("Held by the program"));
    for socket in &mut sample.taken.sockets {
        (socket.zero_copy_packets, socket.zero_copy_bytes) = (2, 300);
    }
    let text = held(&sample);
    assert!(text.contains("\nHeld by the program: 2 packets of 300 bytes\n"), "{text}");
    // Nothing else gives way to it but a socket of the table.
    assert_eq!(text.lines().last(), lines(&draw(&mut state(&[server()]), 100, 30)).lines().last());
    assert!(text.contains("Round trip: 35 us") && text.contains("\nRING OF"), "{text}");
}

#[test]
fn help_fits_a_small_screen() {
    let mut state = state(&[server()]);
    state.press(Key::Help);
    compare("help", &mut state, 80, 24);
    state.press(Key::Help);
    assert!(lines(&draw(&mut state, 80, 24)).contains("chosen socket"));
}

#[test]
fn more_than_there_is_room_for_is_scrolled() {
    let mut state = state(&many());
    compare("many", &mut state, 80, 24);
    for _ in 0..12 {
        state.press(Key::Down);
    }
    compare("many-scrolled", &mut state, 80, 24);
    let page = state.page;
    state.press(Key::PageUp);
    assert_eq!(state.chosen, 12 - page);
    state.press(Key::Last);
    compare("many-last", &mut state, 80, 24);
}

#[test]
fn before_the_second_snapshot_there_are_no_rates() {
    let mut first = server();
    first.before = None;
    compare("first", &mut state(&[first]), 80, 24);
}

#[test]
fn every_order_has_its_key() {
    let mut state = state(&[server(), client()]);
    assert_eq!(descriptors(&state), [7, 9, 4, 8], "packets");
    state.press(Key::ByBytes);
    assert_eq!(descriptors(&state), [9, 7, 4, 8]);
    state.press(Key::ByDrops);
    assert_eq!(descriptors(&state), [8, 4, 7, 9], "equal ones by name");
    state.press(Key::ByName);
    assert_eq!(descriptors(&state), [4, 7, 8, 9]);
    state.press(Key::Reverse);
    assert_eq!(descriptors(&state), [9, 8, 7, 4]);
    assert!(lines(&draw(&mut state, 80, 24)).contains("by name, reversed"));
}

#[test]
fn the_choice_follows_its_socket() {
    let mut state = state(&[server(), client()]);
    state.press(Key::Down);
    assert_eq!(state.rows.sockets[state.chosen].key.1, 9);
    state.press(Key::ByName);
    assert_eq!((state.chosen, state.rows.sockets[state.chosen].key.1), (3, 9));
    // It is gone: the line stays, as far as there is one.
    state.update(&[client()]);
    assert_eq!(state.chosen, 0);
}

#[test]
fn losses_are_red_and_the_kernels_sockets_yellow() {
    let mut quiet = server();
    quiet.taken.sockets[1].counters.rx_dropped_packets = 0;
    let colour_of = |sample: Sample, mark: &str| {
        let mut state = state(&[sample]);
        state.press(Key::Last);
        let screen = draw(&mut state, 80, 24);
        let line = lines(&screen).lines().position(|line| line.contains(mark)).unwrap();
        let cell = screen.buffer()[(0, line as u16)].clone();
        (cell.fg, cell.modifier.contains(Modifier::REVERSED))
    };
    assert_eq!(colour_of(server(), "kernel "), (Color::Red, true));
    assert_eq!(colour_of(quiet, "kernel "), (Color::Yellow, true));
    assert_eq!(colour_of(server(), " host "), (Color::Reset, false));
}

#[test]
fn it_says_that_there_is_nobody_yet_and_nobody_any_more() {
    let mut state = State::new(Duration::from_millis(1500));
    state.update(&[]);
    assert_eq!(state.presence, Presence::None);
    assert!(lines(&draw(&mut state, 80, 24)).contains("No process that runs over libvma"));
    state.update(&[server()]);
    state.update(&[]);
    let screen = lines(&draw(&mut state, 80, 24));
    assert!(screen.contains("The last process has ended"), "{screen}");
    assert!(screen.contains("every 1.5 s"), "{screen}");
    state.update(&[client()]);
    assert!(lines(&draw(&mut state, 80, 24)).contains("a?[31m very lon"));
}

#[test]
fn no_size_of_the_terminal_is_fatal() {
    let mut state = state(&many());
    for width in (1..200).step_by(7) {
        for height in (1..45).step_by(2) {
            for line in lines(&draw(&mut state, width, height)).lines() {
                assert!(line.chars().count() <= usize::from(width));
            }
        }
    }
    assert!(lines(&draw(&mut state, 39, 24)).contains("too small"));
}

#[test]
fn rates_are_by_the_clock_of_the_snapshots() {
    let mut state = state(&[server()]);
    assert_eq!(state.rows.sockets[0].rx_packets, Some(1_000_000.0));
    assert_eq!(state.rows.processes[0].drops, Some(30.0));
    // Twice the same snapshot.
    let mut same = server();
    same.before = Some(same.taken.clone());
    state.update(&[same]);
    assert_eq!(state.rows.sockets[0].rx_packets, None);
    assert!(lines(&draw(&mut state, 80, 24)).contains("does not answer"));
}

#[test]
fn keys_are_understood() {
    let pressed = |code, modifiers| translate(KeyEvent::new(code, modifiers));
    assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Quit));
    assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), None);
    assert_eq!(pressed(KeyCode::Char('d'), KeyModifiers::CONTROL), None);
    assert_eq!(pressed(KeyCode::Char(' '), KeyModifiers::CONTROL), None);
    assert_eq!(pressed(KeyCode::Char('?'), KeyModifiers::SHIFT), Some(Key::Help));
    assert_eq!(pressed(KeyCode::Down, KeyModifiers::NONE), Some(Key::Down));
}
