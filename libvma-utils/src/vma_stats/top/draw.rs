//! The screen, from what the state says; nothing else decides what stands there.
//!
//! ```text
//! title           how many, in which order, whether paused
//! processes       one line each
//! sockets         takes what room is left
//! chosen socket   all that is known of it
//! rings
//! keys
//! ```

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::columns::{self, Align};
use super::numbers::{megabytes, percent, short};
use super::rows::{ProcessRow, RingRow, SocketRow};
use super::state::{Presence, Sort, State};

const NARROWEST: u16 = 40;
const LOWEST: u16 = 8;
/// The chosen socket and the rings need so many lines in all.
const WITH_CHOSEN: u16 = 16;
const WITH_RINGS: u16 = 20;
/// Lines about the chosen socket, with the rule above; one more if the program holds packets of it.
const CHOSEN: u16 = 5;

const KEYS: &str = "p packets  b bytes  d drops  n name  r reverse  space pause  h help  q quit";

const PLAIN: Style = Style::new();
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);
const BAD: Style = Style::new().fg(Color::Red);
const KERNEL: Style = Style::new().fg(Color::Yellow);

pub fn screen(state: &mut State, area: Rect, buffer: &mut Buffer) {
    let mut page = Page { buffer, area, next: area.top(), end: area.bottom() };
    if area.width < NARROWEST || area.height < LOWEST {
        page.line("The terminal is too small.", PLAIN);
        return;
    }
    page.end -= 1;
    title(&mut page, state);
    if state.help {
        for line in include_str!("help.txt").lines() {
            page.line(line, PLAIN);
        }
    } else {
        match state.presence {
            Presence::None => page.line("No process that runs over libvma was found yet.", PLAIN),
            Presence::Ended => {
                page.line("The last process has ended. Another one will be shown; q quits.", TITLE);
            }
            Presence::Some => body(&mut page, state),
        }
    }
    page.next = area.bottom() - 1;
    page.end = area.bottom();
    page.line(if state.help { "h back  q quit" } else { KEYS }, HEADING);
}

/// Lines from top to bottom; what is beyond the end or the right margin is cut off.
struct Page<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    next: u16,
    end: u16,
}

impl Page<'_> {
    fn line(&mut self, text: &str, style: Style) {
        if self.next < self.end {
            let line = Rect { y: self.next, height: 1, ..self.area };
            self.buffer.set_style(line, style);
            self.buffer.set_stringn(line.x, line.y, text, line.width.into(), style);
            self.next += 1;
        }
    }

    fn left(&self) -> u16 {
        self.end.saturating_sub(self.next)
    }

    fn rule(&mut self, text: &str) {
        let width = usize::from(self.area.width);
        self.line(&format!("-- {text} {}", "-".repeat(width)), PLAIN);
    }
}

fn title(page: &mut Page<'_>, state: &State) {
    let rows = &state.rows;
    let order = match state.sort {
        Sort::Packets => "packets",
        Sort::Bytes => "bytes",
        Sort::Drops => "drops",
        Sort::Name => "name",
    };
    let hidden: u64 = rows.processes.iter().map(|process| u64::from(process.hidden)).sum();
    let mut text = format!(
        "vma_stats  {}, {}",
        counted(rows.processes.len(), "process", "processes"),
        counted(rows.sockets.len(), "socket", "sockets")
    );
    if hidden > 0 {
        // VMA_STATS_FD_NUM has no place for them.
        text += &format!(" and {hidden} not listed");
    }
    text += &format!("  by {order}{}", if state.reverse { ", reversed" } else { "" });
    text += &format!("  every {} s", state.interval.as_secs_f64());
    if state.paused {
        text += "  PAUSED";
    }
    page.line(&text, TITLE);
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn body(page: &mut Page<'_>, state: &mut State) {
    let height = page.area.height;
    processes(page, &state.rows.processes, usize::from(height / 6));
    let rings = if height >= WITH_RINGS { &state.rows.rings[..] } else { &[] };
    let ring_lines = rings.len().min(usize::from(height / 6)) as u16;
    let holds = state.rows.sockets.get(state.chosen).is_some_and(|one| one.held_packets > 0);
    let below = if height >= WITH_CHOSEN { CHOSEN + u16::from(holds) } else { 0 }
        + if ring_lines > 0 { ring_lines + 1 } else { 0 };
    let (bottom, until) = (page.end, page.end.saturating_sub(below));
    page.end = until.max(page.next);
    sockets(page, state);
    (page.next, page.end) = (page.end, bottom);
    if height >= WITH_CHOSEN {
        match state.rows.sockets.get(state.chosen) {
            Some(socket) => chosen(page, socket),
            None => page.next = (page.next + CHOSEN).min(page.end),
        }
    }
    if ring_lines > 0 {
        ring_table(page, &state.rows.rings, ring_lines.into());
    }
}

fn processes(page: &mut Page<'_>, rows: &[ProcessRow], room: usize) {
    page.line(
        &format!(
            "{:16} {:>8} {:>7} {:>5} {:>5} {:>7} {:>8} {:>17}",
            "PROCESS", "PID", "sockets", "pkt/s", "MB/s", "drops/s", "poll CPU", "free recv/sent"
        ),
        HEADING,
    );
    let room = room.max(1);
    let shown = if rows.len() > room { room - 1 } else { rows.len() };
    for row in rows.iter().take(shown) {
        let frames = row.frames_free.map(|free| free.map_or("-".to_owned(), |n| n.to_string()));
        let text = format!(
            "{:16} {:>8} {:>7} {:>5} {:>5} {:>7} {:>7}% {:>17}",
            cut(&row.name, 16),
            row.process,
            row.sockets,
            short(row.packets),
            short(megabytes(row.bytes)),
            short(row.drops),
            row.polling,
            if row.silent { "does not answer".to_owned() } else { frames.join("/") }
        );
        page.line(&text, if row.drops.unwrap_or(0.0) > 0.0 { BAD } else { PLAIN });
    }
    if rows.len() > shown {
        page.line(&format!("... and {} more", rows.len() - shown), PLAIN);
    }
}

fn sockets(page: &mut Page<'_>, state: &mut State) {
    let columns = columns::fitting(page.area.width);
    for half in 0..2 {
        let titles = columns.iter().map(|(column, width)| {
            aligned(column.title.get(half).copied().unwrap_or_default(), *width, column.align)
        });
        page.line(&titles.collect::<Vec<_>>().join(" "), HEADING);
    }
    state.fit(page.left().into());
    if state.rows.sockets.is_empty() {
        page.line("No sockets.", PLAIN);
    }
    for (index, socket) in state.rows.sockets.iter().enumerate().skip(state.top) {
        let cells = columns
            .iter()
            .map(|(column, width)| aligned(&(column.text)(socket), *width, column.align));
        let style = if socket.drops.unwrap_or(0.0) > 0.0 {
            BAD
        } else if socket.served_by == "kernel" {
            KERNEL
        } else {
            PLAIN
        };
        let mark = if index == state.chosen { Modifier::REVERSED } else { Modifier::empty() };
        page.line(&cells.collect::<Vec<_>>().join(" "), style.add_modifier(mark));
    }
}

fn chosen(page: &mut Page<'_>, socket: &SocketRow) {
    let (process, descriptor, _) = socket.key;
    page.rule("chosen socket");
    let mut words =
        vec![format!("{}[{process}] fd {descriptor} {}", cut(&socket.name, 64), socket.protocol)];
    words.extend((!socket.local.is_empty()).then(|| socket.local.clone()));
    words.extend((!socket.peer.is_empty()).then(|| format!("-> {}", socket.peer)));
    words.push(socket.state.to_owned());
    page.line(&words.join(" "), PLAIN);
    let carrier = match socket.served_by {
        "offload" => "Carried by the device, past the kernel.".to_owned(),
        "host" => "Carried by shared memory within this host, past the kernel.".to_owned(),
        _ if socket.reason.is_empty() => "Carried by the kernel.".to_owned(),
        _ => format!("Carried by the kernel: {}", socket.reason),
    };
    page.line(&carrier, if socket.served_by == "kernel" { KERNEL } else { PLAIN });
    page.line(
        &format!(
            "To be read: {} in {} bytes.  Not acknowledged: {} bytes.  Drops: {}/s",
            counted(socket.ready_packets as usize, "packet", "packets"),
            socket.ready_bytes,
            socket.unsent_bytes,
            short(socket.drops)
        ),
        PLAIN,
    );
    let mut words = format!("Polls that found something: {}", percent(socket.poll_hits, " %"));
    if let Some(round_trip) = socket.round_trip {
        words += &format!(
            "  Round trip: {round_trip:.0} us  Sent again: {}/s",
            short(socket.retransmissions)
        );
    }
    page.line(&words, PLAIN);
    if socket.held_packets > 0 {
        let packets = counted(socket.held_packets as usize, "packet", "packets");
        let words = format!("Held by the program: {packets} of {} bytes", socket.held_bytes);
        page.line(&words, PLAIN);
    }
}

fn ring_table(page: &mut Page<'_>, rows: &[RingRow], room: usize) {
    page.line(
        &format!(
            "{:12} {:>8} {:5} {:10} {:>6} {:>5} {:>6} {:>5} {:>7} {:>6}",
            "RING OF",
            "PID",
            "kind",
            "interface",
            "recv/s",
            "MB/s",
            "sent/s",
            "MB/s",
            "drops/s",
            "frames"
        ),
        HEADING,
    );
    let shown = if rows.len() > room { room.saturating_sub(1) } else { rows.len() };
    for row in rows.iter().take(shown) {
        let text = format!(
            "{:12} {:>8} {:5} {:10} {:>6} {:>5} {:>6} {:>5} {:>7} {:>6}",
            cut(&row.name, 12),
            row.process,
            row.kind,
            cut(&row.interface, 10),
            short(row.rx_packets),
            short(megabytes(row.rx_bytes)),
            short(row.tx_packets),
            short(megabytes(row.tx_bytes)),
            short(row.drops),
            row.frames
        );
        page.line(&text, if row.drops.unwrap_or(0.0) > 0.0 { BAD } else { PLAIN });
    }
    if rows.len() > shown {
        page.line(&format!("... and {} more", rows.len() - shown), PLAIN);
    }
}

fn aligned(text: &str, width: u16, align: Align) -> String {
    let width = usize::from(width);
    let text = cut(text, width);
    match align {
        Align::Left => format!("{text:width$}"),
        Align::Right => format!("{text:>width$}"),
    }
}

/// The name of a program can hold anything; what is not plain would shift the columns.
fn cut(text: &str, width: usize) -> String {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().map(plain).take(width).collect()
}
