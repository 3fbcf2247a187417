//! What the service manager is told (sd_notify(3)), and the watchdog's pace. Without one nothing of
//! this does anything.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

pub struct Service {
    /// Half of what the manager waits.
    watchdog: Option<Duration>,
    next: Option<Instant>,
}

impl Service {
    pub fn new() -> Service {
        // Zero is "none", too.
        let watchdog = sd_notify::watchdog_enabled().map(|period| period / 2);
        let watchdog = watchdog.filter(|period| !period.is_zero());
        Service { watchdog, next: watchdog.map(|_| Instant::now()) }
    }

    pub fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// To be followed by [`Service::ready`].
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(error) => log::warn!("cannot tell the service manager of the reload: {error}"),
        }
    }

    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// When [`Service::alive`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Tells the watchdog that the loop runs, if it is time.
    pub fn alive(&mut self, now: Instant) {
        if let (Some(period), Some(next)) = (self.watchdog, self.next)
            && next <= now
        {
            tell(&[NotifyState::Watchdog]);
            self.next = Some(now + period);
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("cannot tell the service manager: {error}");
    }
}
