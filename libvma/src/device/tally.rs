//! What rings of all kinds count in the same way.

#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Sleeps on the ring, and those of them that it ended.
    pub sleeps: u64,
    pub wakes: u64,
    /// Most packets taken by one poll.
    pub drained_max: u32,
    /// Packets that nobody tries to send again, for want of a frame or of room.
    pub lost: u64,
    /// TCP segments sent again.
    pub retransmissions: u64,
}
