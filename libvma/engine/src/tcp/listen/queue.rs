//! The half-open connections of a listener, by 4-tuple and by deadline. Storage only.

use crate::alloc;
use alloc::vec::Vec;

use super::super::lookup::{FlowKey, FlowTable};
use super::request::Request;
use crate::time::Instant;
use crate::timer_wheel::TimerWheel;

/// The SYN queue. Its memory is that of its fullest moment.
pub struct RequestQueue {
    requests: Vec<Option<Request>>,
    /// The vacant places of `requests`.
    vacant: Vec<u32>,
    by_key: FlowTable<u32>,
    deadlines: TimerWheel,
}

impl RequestQueue {
    pub fn new(seed: u64, now: Instant) -> RequestQueue {
        RequestQueue {
            requests: Vec::new(),
            vacant: Vec::new(),
            by_key: FlowTable::new(seed),
            deadlines: TimerWheel::new(now),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    #[inline]
    pub fn find(&self, key: &FlowKey) -> Option<u32> {
        self.by_key.get(key)
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Request> {
        self.requests.get_mut(id as usize)?.as_mut()
    }

    /// Adds a request whose key is not among the others.
    pub fn insert(&mut self, request: Request, deadline: Instant) {
        let id = match self.vacant.pop() {
            Some(id) => id,
            None => {
                let Ok(id) = u32::try_from(self.requests.len()) else { return };
                self.requests.push(None);
                id
            }
        };
        self.by_key.insert(request.key, id);
        self.deadlines.schedule(id, deadline);
        if let Some(place) = self.requests.get_mut(id as usize) {
            *place = Some(request);
        }
    }

    pub fn remove(&mut self, id: u32) -> Option<Request> {
        let request = self.requests.get_mut(id as usize)?.take()?;
        self.by_key.remove(&request.key);
        self.deadlines.cancel(id);
        self.vacant.push(id);
        Some(request)
    }

    pub fn set_deadline(&mut self, id: u32, deadline: Instant) {
        self.deadlines.schedule(id, deadline);
    }

    /// A time before which [`RequestQueue::pop_due`] finds nothing.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// A request whose deadline has come. It has none until it is given another.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.deadlines.pop_due(now)
    }

    pub fn keys(&self) -> impl Iterator<Item = FlowKey> {
        self.requests.iter().flatten().map(|request| request.key)
    }

    /// Takes out all of them.
    pub fn drain(&mut self) -> impl Iterator<Item = Request> {
        let ids = 0..u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        ids.filter_map(|id| self.remove(id))
    }
}
