//! The live view: all processes, their sockets by rate, their rings.
//!
//! ```text
//! samples --rows--> rows of rates --state (sort, choose, scroll)--> state --draw--> screen
//! ```
//!
//! Here are the terminal, the keys and the clock; everything else is a function of what it is given.

mod columns;
mod draw;
mod numbers;
mod rows;
mod state;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::sample::Sample;
use state::{Key, State};

/// How soon a signal is seen.
const PULSE: Duration = Duration::from_millis(100);
/// The first rates need two snapshots; nobody wants to wait a long interval for them.
const FIRST: Duration = Duration::from_millis(250);
const SHORTEST: Duration = Duration::from_millis(50);

/// Until q, Ctrl-C or a signal.
pub fn run(collect: impl FnMut() -> Vec<Sample>, interval: Duration) -> anyhow::Result<()> {
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        "the live view needs a terminal"
    );
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("no signal handler")?;
    }
    // Also makes a panic give the terminal back.
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let shown = show(&mut terminal, &stop, collect, interval);
    ratatui::try_restore().context("the terminal cannot be restored")?;
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    stop: &AtomicBool,
    mut collect: impl FnMut() -> Vec<Sample>,
    interval: Duration,
) -> anyhow::Result<()> {
    let interval = interval.max(SHORTEST);
    let mut state = State::new(interval);
    state.update(&collect());
    let mut next = Instant::now() + interval.min(FIRST);
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::screen(&mut state, frame.area(), frame.buffer_mut()))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left.min(PULSE))? {
            let Event::Key(key) = event::read()? else { continue };
            match translate(key) {
                Some(Key::Quit) => break,
                Some(key) => state.press(key),
                None => {}
            }
        }
        if Instant::now() >= next {
            if !state.paused {
                state.update(&collect());
            }
            next = Instant::now() + interval;
        }
    }
    Ok(())
}

fn translate(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        // A terminal whose other end is closed says Ctrl-D or Ctrl-Space.
        KeyCode::Char(_) if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Char('p') => Key::ByPackets,
        KeyCode::Char('b') => Key::ByBytes,
        KeyCode::Char('d') => Key::ByDrops,
        KeyCode::Char('n') => Key::ByName,
        KeyCode::Char('r') => Key::Reverse,
        KeyCode::Char(' ') => Key::Pause,
        KeyCode::Char('h' | '?') => Key::Help,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
