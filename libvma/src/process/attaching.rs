//! Attaches interfaces beside the program: a thread for each, which ends when its interface is attached.
//!
//! The internal thread decides when (`socket::attaching`), but does not wait for the kernel itself: connections
//! over other interfaces need it.

use super::Process;
use crate::log::log_line;
use crate::shard::SocketId;
use crate::socket::{Stack, WhyOs, attach, is_stream, lost_rings};
use crate::sys::thread;

/// For the internal thread, in every round.
pub fn attend(process: &'static Process) {
    let stack = &process.stack;
    lost_rings::leave(stack);
    if stack.attaching.patience() != Some(0) {
        return;
    }
    let Ok(mut plane) = stack.plane.lock() else { return };
    let Some(plane) = plane.as_mut() else { return };
    for interface in stack.attaching.take_due(&mut plane.wanted) {
        // The signals that this thread blocks the new one blocks, too.
        let spawned = thread::start_own("vma-attach", move || run(process, interface));
        if let Err(error) = spawned {
            log_line!(Debug, "no thread to attach an interface in the background: {error}");
            plane.rings.insert(interface, Err(WhyOs::RingRefused));
            plane.wanted.finish(interface);
        }
    }
}

fn run(process: &'static Process, interface: u32) {
    let stack = &process.stack;
    let spec = match stack.plane.lock() {
        Ok(plane) => plane.as_ref().map(|plane| plane.control.offloadable(interface)),
        Err(_) => None,
    };
    let Some(Ok(spec)) = spec else {
        // It went down, or into a bridge: it is looked at again when that changes.
        if let Ok(mut plane) = stack.plane.lock()
            && let Some(plane) = plane.as_mut()
        {
            plane.wanted.finish(interface);
        }
        return;
    };
    lost_rings::await_daemon(stack);
    let opened = attach::attach(stack, spec, 0);
    let without = {
        let Ok(mut plane) = stack.plane.lock() else { return };
        let Some(plane) = plane.as_mut() else { return };
        let is_given_up = plane.wanted.finish(interface);
        plane.rings.insert(interface, opened);
        if let Ok(ring) = opened {
            lost_rings::check(stack, ring);
            // Its addresses or its MTU may have changed meanwhile.
            attach::update_interfaces(stack, plane);
        }
        let without = attach::reconsider(stack, plane);
        if let Ok(mut state) = stack.shard.lock() {
            if let Ok(ring) = opened
                && is_given_up
                && state.shut_idle_ring(ring)
            {
                // A child that was forked meanwhile may want it.
                plane.rings.remove(&interface);
            }
            // Datagrams that went by the kernel's socket find the ring now.
            state.next_epoch();
        }
        without
    };
    for (id, why) in without {
        if why == WhyOs::RingRefused {
            refuse(process, id, why);
        }
    }
    stack.wake_internal_thread();
}

/// No interface serves the socket: it is the kernel's.
fn refuse(process: &Process, id: SocketId, why: WhyOs) {
    let stack: &Stack = &process.stack;
    if !is_stream(stack, id) {
        attach::un_offload(stack, id, why);
    } else if crate::socket::stream::listen::refuse(stack, id, why) {
        process.drop_stream_for(id, why);
    }
}
