//! How two ends become one pipe: offered by the client, confirmed by the server. Either may be there before
//! the link is, or before the other's word: until then it is apart, and its bytes go by the kernel.

use super::{Bond, Pipe, clamped};
use crate::device::shm::LinkId;
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::{Message, Name, Offer};

impl Pipe {
    /// The client's end is offered. False: the link is full, and nobody has heard of it.
    pub(in crate::shard::pipe) fn offer(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        offer: Offer,
        now: u64,
    ) -> bool {
        carrier.set_note(link, self.own.index, 0);
        carrier.forget_reader(link, self.own.index);
        let told = carrier.tell(link, Message::Offer { from: self.own, offer });
        if told {
            (self.link, self.bond, self.since) = (link, Bond::Offered, now);
        }
        told
    }

    /// The server's end of an offer that was there when it accepted. False: the link is full, and there is no
    /// pipe.
    pub(in crate::shard::pipe) fn confirm(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        peer: Name,
        limit: u32,
    ) -> bool {
        let confirmed = self.tell_confirmation(carrier, link, peer, limit, false);
        if confirmed {
            self.outgoing.state.switch(true);
        }
        self.used = false;
        self.established = true;
        confirmed
    }

    /// The server has accepted, and expects the offer. What it sends until then goes by the kernel.
    pub(in crate::shard::pipe) fn expect_offer(&mut self) {
        self.used = false;
        self.established = true;
    }

    /// The offer that was expected has come. False: the link is full, and the offer is not taken.
    pub(in crate::shard::pipe) fn confirm_late(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        peer: Name,
        limit: u32,
    ) -> bool {
        let confirmed = self.tell_confirmation(carrier, link, peer, limit, true);
        if confirmed {
            self.switch(carrier);
            if self.used {
                self.credit(carrier);
            }
        }
        confirmed
    }

    fn tell_confirmation(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        peer: Name,
        limit: u32,
        late: bool,
    ) -> bool {
        carrier.set_note(link, self.own.index, 0);
        carrier.forget_reader(link, self.own.index);
        let own = u32::try_from(self.incoming.limit).unwrap_or(u32::MAX);
        let message = Message::Confirm { to: peer, from: self.own, limit: own, late };
        if !carrier.tell(link, message) {
            return false;
        }
        (self.link, self.bond) = (link, Bond::Confirmed(peer));
        self.incoming.told_limit = self.incoming.limit;
        self.outgoing.window = clamped(limit.into());
        true
    }
}
