//! Values that a program has noted at its sockets (SO_VMA_USER_DATA, SO_VMA_FLOW_TAG).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::extra::{SO_FLOW_TAG, SO_USER_DATA};

use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// Only of sockets at which something was noted.
#[derive(Default)]
pub struct Notes {
    any: AtomicBool,
    notes: Lock<HashMap<SocketId, Note>>,
}

#[derive(Clone, Copy, Default)]
struct Note {
    user_data: Option<u64>,
    flow_tag: Option<u32>,
}

impl Notes {
    /// setsockopt() of such an option. None: it is another one.
    pub fn set(&self, id: SocketId, name: i32, value: &[u8]) -> Option<Result<(), i32>> {
        let note: fn(&mut Note, &[u8]) -> Result<(), i32> = match name {
            SO_USER_DATA => |note, value| {
                let data = value.try_into().map(u64::from_ne_bytes);
                note.user_data = Some(data.map_err(|_| libc::EINVAL)?);
                Ok(())
            },
            SO_FLOW_TAG => |note, value| {
                let tag = value.try_into().map(u32::from_ne_bytes).map_err(|_| libc::EINVAL)?;
                if matches!(tag, 0 | u32::MAX) {
                    return Err(libc::EINVAL);
                }
                note.flow_tag = Some(tag);
                Ok(())
            },
            _ => return None,
        };
        let Ok(mut notes) = self.notes.lock() else { return Some(Err(libc::EAGAIN)) };
        let mut changed = notes.get(&id).copied().unwrap_or_default();
        Some(note(&mut changed, value).map(|()| {
            notes.insert(id, changed);
            self.any.store(true, Ordering::Relaxed);
        }))
    }

    /// getsockopt() of such an option into so much room: bytes, and how many of them. None: it is another one.
    pub fn get(
        &self,
        id: SocketId,
        name: i32,
        descriptor: i32,
        room: usize,
    ) -> Option<Result<([u8; 8], usize), i32>> {
        let note = self.notes.lock().ok().and_then(|notes| notes.get(&id).copied());
        let note = note.unwrap_or_default();
        match name {
            SO_USER_DATA if room == 8 => {
                let data = note.user_data.unwrap_or(descriptor as u64);
                Some(Ok((data.to_ne_bytes(), 8)))
            }
            SO_FLOW_TAG if room >= 4 => {
                let tag = note.flow_tag.unwrap_or((descriptor as u32).wrapping_add(1));
                let mut bytes = [0; 8];
                if let Some(front) = bytes.first_chunk_mut() {
                    *front = tag.to_ne_bytes();
                }
                Some(Ok((bytes, 4)))
            }
            SO_USER_DATA | SO_FLOW_TAG => Some(Err(libc::EINVAL)),
            _ => None,
        }
    }

    /// The socket is closed.
    pub fn remove(&self, id: SocketId) {
        if self.any.load(Ordering::Relaxed)
            && let Ok(mut notes) = self.notes.lock()
        {
            notes.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_wrong_length_change_nothing() {
        let notes = Notes::default();
        let id = SocketId::from_bits(1 << 32 | 5).expect("a generation");
        assert_eq!(notes.get(id, SO_USER_DATA, 9, 8), Some(Ok((9u64.to_ne_bytes(), 8))));
        assert_eq!(notes.set(id, SO_USER_DATA, &[1; 8]), Some(Ok(())));
        assert_eq!(notes.set(id, SO_USER_DATA, &[2; 7]), Some(Err(libc::EINVAL)));
        assert_eq!(notes.get(id, SO_USER_DATA, 9, 8), Some(Ok(([1; 8], 8))));
        assert_eq!(notes.get(id, SO_USER_DATA, 9, 9), Some(Err(libc::EINVAL)));
        assert_eq!(notes.set(id, SO_FLOW_TAG, &[0; 4]), Some(Err(libc::EINVAL)));
        assert_eq!(notes.set(id, SO_FLOW_TAG, &[7, 0, 0, 0]), Some(Ok(())));
        assert_eq!(notes.get(id, SO_FLOW_TAG, 9, 8), Some(Ok(([7, 0, 0, 0, 0, 0, 0, 0], 4))));
        assert_eq!((notes.set(id, 1, &[0; 4]), notes.get(id, 1, 9, 4)), (None, None));
        notes.remove(id);
        assert_eq!(notes.get(id, SO_FLOW_TAG, 9, 4), Some(Ok(([10, 0, 0, 0, 0, 0, 0, 0], 4))));
    }
}
