//! Putting segments together: headers, options, and what every sent segment changes.

use super::{Connection, State, own_mss, stamp_clock};
use crate::tcp::seq::Seq;
use crate::tcp::{Link, Outgoing};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, SackBlock, Timestamps};

const ACK: Flags = Flags::ACK;

impl<B> Connection<B> {
    /// A segment without payload.
    fn bare(&self, now: Instant, seq: Seq, flags: Flags) -> Outgoing<'static> {
        let mut segment = Outgoing {
            header: Header::default(),
            payload: [&[], &[]],
            segment_size: u32::MAX,
            ecn_capable: false,
        };
        self.fill_common(&mut segment.header, now, seq, flags);
        segment
    }

    /// What is the same in all segments, written where it stays: a header just written that is copied
    /// as a whole makes the processor wait for all its fields.
    #[inline(always)]
    pub(super) fn fill_common(&self, header: &mut Header, now: Instant, seq: Seq, flags: Flags) {
        header.src_port = self.key.local_port;
        header.dst_port = self.key.remote_port;
        header.seq = seq.raw();
        header.ack = self.rcv_nxt.raw();
        header.flags = flags;
        if self.stamps.enabled {
            header.options.timestamps = Some(Timestamps {
                value: stamp_clock(now, self.stamps.offset),
                echo: self.stamps.recent,
            });
        }
        if self.ecn.echo && self.state.is_synchronized() {
            header.flags = header.flags.with(Flags::ECE);
        }
    }

    /// Sends the bytes and FIN from `start` to `end`, at most what fits one segment or what the
    /// device cuts. True if it left.
    #[inline(always)]
    pub(super) fn send_range(
        &mut self,
        start: Seq,
        end: Seq,
        is_new: bool,
        now: Instant,
        link: &mut impl Link<B>,
    ) -> bool {
        let data_end = self.data_end();
        let len = end.min(data_end).ahead_of(start);
        let mut flags = ACK;
        if end > data_end && self.fin_queued {
            flags = flags.with(Flags::FIN);
        }
        if len > 0 && start.plus(len) == data_end {
            flags = flags.with(Flags::PSH);
        }
        if is_new && len > 0 && core::mem::take(&mut self.ecn.reduced) {
            flags = flags.with(Flags::CWR);
        }
        let urgent = self.urgent_pointer(start);
        if urgent > 0 {
            flags = flags.with(Flags::URG);
        }
        let sent = self.send_bytes(start, len, (flags, urgent), is_new, now, link);
        self.ecn.reduced |= !sent && flags.contains(Flags::CWR);
        sent
    }

    /// The urgent pointer of a segment with that number; 0 if it has none (RFC 9293 section 3.8.5). A byte that is too far ahead is
    /// announced from as far as the field goes, unless the segment is an old one again (as on Linux, tcp_transmit_skb): the
    /// peer must learn that urgent data follow, or it may read nothing.
    #[inline]
    fn urgent_pointer(&self, seq: Seq) -> u16 {
        let distance = self.snd_up.map_or(0, |up| up.ahead_of(seq));
        let is_recent = || seq.plus(u16::MAX.into()) > self.snd_nxt;
        u16::try_from(distance).unwrap_or_else(|_| if is_recent() { u16::MAX } else { 0 })
    }

    /// Sends `len` bytes from `start` with these flags and this urgent pointer. True if they left; if
    /// not, what the flags said is still to be said, which is the caller's concern.
    #[inline(always)]
    pub(super) fn send_bytes(
        &mut self,
        start: Seq,
        len: u32,
        (flags, urgent): (Flags, u16),
        is_new: bool,
        now: Instant,
        link: &mut impl Link<B>,
    ) -> bool {
        let edge = (self.announced.edge, self.announced.acknowledged);
        let due = self.announced.due;
        let window = self.announce();
        let offset = start.since(self.buffer_start) as usize;
        let mut segment = Outgoing {
            header: Header::default(),
            payload: self.buffer.slices(offset, len as usize),
            segment_size: self.mss,
            // RFC 3168 section 6.1.5: not on retransmissions.
            ecn_capable: self.ecn.enabled && is_new && len > 0,
        };
        self.fill_common(&mut segment.header, now, start, flags);
        segment.header.window = window;
        segment.header.urgent = urgent;
        let sent = link.emit(&segment);
        if sent {
            let segments = if len <= self.mss { 1 } else { len.div_ceil(self.mss) };
            self.counters.segments_out =
                self.counters.segments_out.wrapping_add(u64::from(segments));
            self.last_sent = now;
        } else {
            (self.announced.edge, self.announced.acknowledged) = edge;
            // An acknowledgment is due if one was before, or if the segment would have carried one.
            self.announced.due = due || self.announced.acknowledged != self.rcv_nxt;
        }
        sent
    }

    /// The sequence number of a segment without data: SND.NXT, unless that lies beyond a window that has shrunk,
    /// where the peer would drop the segment (Linux: tcp_acceptable_seq). What the scale of windows cuts off
    /// is no shrinking.
    #[inline]
    fn acceptable_seq(&self) -> Seq {
        let edge = self.snd_una.plus(self.snd_wnd);
        let is_within = self.snd_nxt.ahead_of(edge).wrapping_shr(self.rcv_scale.into()) == 0;
        if is_within { self.snd_nxt } else { edge }
    }

    /// A segment without data that tells of the urgent byte, for which the window may have no room (RFC 9293 section 3.8.5).
    fn bare_urgent(&self, now: Instant, seq: Seq) -> Outgoing<'static> {
        let mut segment = self.bare(now, seq, ACK);
        segment.header.urgent = self.urgent_pointer(seq);
        if segment.header.urgent > 0 {
            segment.header.flags = segment.header.flags.with(Flags::URG);
        }
        segment
    }

    /// An acknowledgment without data.
    pub(super) fn send_ack(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let mut segment = self.bare_urgent(now, self.acceptable_seq());
        if self.sack {
            self.add_blocks(&mut segment.header);
        }
        self.emit_announcing(&mut segment, link)
    }

    /// D-SACK first (RFC 2883), then the ranges that wait (RFC 2018).
    fn add_blocks(&mut self, header: &mut Header) {
        let room: usize = if self.stamps.enabled { 3 } else { 4 };
        let duplicate = self.duplicate.take();
        // A FIN that waits has a number of its own, behind its data or alone.
        let fin = self.fin_waiting.map(Seq::raw);
        let range = fin.map(|fin| {
            let before = self.reassembly.blocks().find(|block| block.right == fin);
            let left = before.map_or(fin, |block| block.left);
            SackBlock { left, right: fin.wrapping_add(1) }
        });
        let waiting = self.reassembly.blocks().filter(|block| Some(block.right) != fin);
        let (first, last) = if self.fin_is_latest { (range, None) } else { (None, range) };
        let blocks = duplicate.into_iter().chain(first).chain(waiting).chain(last);
        for block in blocks.take(room) {
            header.options.push_sack(block);
        }
    }

    /// A segment that elicits an acknowledgment: an old sequence number without data, as Linux
    /// sends it.
    pub(super) fn send_probe(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let distance = self.snd_up.map_or(0, |up| up.ahead_of(self.snd_una));
        if (1..=u16::MAX.into()).contains(&distance) {
            // The peer reads the urgent pointer of acceptable segments only.
            let mut segment = self.bare_urgent(now, self.snd_una);
            self.emit_announcing(&mut segment, link);
        }
        let mut segment = self.bare_urgent(now, self.snd_una.minus(1));
        self.emit_announcing(&mut segment, link)
    }

    pub(super) fn send_reset(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let mut segment = self.bare_urgent(now, self.acceptable_seq());
        segment.header.flags = segment.header.flags.with(Flags::RST);
        let sent = link.emit(&segment);
        if sent {
            self.reset_due = false;
            self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        }
        sent
    }

    /// SYN, or SYN and ACK where the peer's SYN has arrived.
    pub(super) fn send_syn(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let answers = self.state != State::SynSent;
        let flags = if answers { Flags::SYN.with(ACK) } else { Flags::SYN };
        let mut segment = self.bare(now, self.iss, flags);
        let header = &mut segment.header;
        if !answers {
            header.ack = 0;
        }
        let options = &mut header.options;
        options.mss = Some(own_mss(self.path, &self.settings) as u16);
        options.sack_permitted = self.sack;
        let scales = !answers || self.rcv_scale != 0 || self.snd_scale != 0;
        if self.settings.window_scaling && scales {
            options.window_scale = Some(self.own_scale);
        }
        if let Some(timestamps) = &mut options.timestamps
            && !answers
        {
            timestamps.echo = 0;
        }
        if self.ecn.enabled && answers {
            // RFC 3168 section 6.1.1.
            header.flags = header.flags.with(Flags::ECE);
        } else if self.ecn.enabled && (self.snd_nxt == self.iss || !self.settings.ecn_fallback) {
            // Section 6.1.1.1: the first one may have been dropped for its bits.
            header.flags = header.flags.with(Flags::ECE.with(Flags::CWR));
        }
        segment.header.window = self.announce_in_syn();
        let sent = link.emit(&segment);
        if sent {
            self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
            self.last_sent = now;
        }
        sent
    }

    fn emit_announcing(&mut self, segment: &mut Outgoing<'_>, link: &mut impl Link<B>) -> bool {
        let before = (self.announced.edge, self.announced.acknowledged);
        let repeats = self.announced.repeats;
        segment.header.window = self.announce();
        let sent = link.emit(segment);
        if sent {
            self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        } else {
            (self.announced.edge, self.announced.acknowledged) = before;
            self.announced.due = true;
            self.announced.repeats = repeats;
        }
        sent
    }

    /// The block that D-SACK reports: what arrived again (RFC 2883 section 4).
    pub(super) fn note_duplicate(&mut self, left: Seq, right: Seq) {
        if self.sack && left < right {
            self.duplicate = Some(SackBlock { left: left.raw(), right: right.raw() });
        }
    }
}
