//! Control messages of a send call (cmsg(3), udp(7)): those that the library serves.

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = size_of::<libc::cmsghdr>();

/// What the control messages of a send call ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// UDP_SEGMENT: instead of what the socket's option says.
    pub segment: Option<u16>,
}

impl Ancillary {
    /// None if there is anything that only the kernel can do, or has to refuse.
    pub fn parse(mut control: &[u8]) -> Option<Ancillary> {
        let mut found = Ancillary::default();
        if control.len() < HEADER {
            return None;
        }
        while let Some(header) = control.get(..HEADER) {
            let len = usize::from_ne_bytes(*header.first_chunk()?);
            let number = |at: usize| {
                let bytes = header.get(at..)?.first_chunk()?;
                Some(i32::from_ne_bytes(*bytes))
            };
            let data = control.get(HEADER..len)?;
            match (number(8)?, number(12)?) {
                (libc::IPPROTO_UDP, libc::UDP_SEGMENT) => {
                    found.segment = Some(u16::from_ne_bytes(data.try_into().ok()?));
                }
                _ => return None,
            }
            control = control.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    fn segment(size: u16) -> Vec<u8> {
        message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes())
    }

    #[test]
    fn the_last_of_a_kind_counts() {
        let both = [segment(100), segment(1200)].concat();
        assert_eq!(Ancillary::parse(&both), Some(Ancillary { segment: Some(1200) }));
        // Without the padding behind the last one, as programs say the length, too.
        let short = &both[..both.len() - 6];
        assert_eq!(Ancillary::parse(short), Some(Ancillary { segment: Some(1200) }));
    }

    #[test]
    fn what_is_wrong_or_unknown_is_the_kernels() {
        let good = segment(1200);
        for bad in [
            vec![],
            vec![0; 15],
            vec![0; 32],
            good[..17].to_vec(),
            message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[1]),
            message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[1, 0, 0, 0]),
            message(libc::IPPROTO_UDP, libc::UDP_GRO, &[1, 0, 0, 0]),
            message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0; 4]),
            [good.clone(), vec![0xff; 16]].concat(),
        ] {
            assert_eq!(Ancillary::parse(&bad), None, "{bad:?}");
        }
    }
}
