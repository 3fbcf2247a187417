//! The names of options that make a socket the kernel's, for messages. docs/socket-options.md has them all.

/// Of a level: its number and options.
type Level = (i32, &'static [(i32, &'static str)]);

const LEVELS: &[Level] = &[
    (
        libc::SOL_SOCKET,
        &[
            (5, "SO_DONTROUTE"),
            (14, "SO_BSDCOMPAT"),
            (26, "SO_ATTACH_FILTER"),
            (29, "SO_TIMESTAMP"),
            (35, "SO_TIMESTAMPNS"),
            (37, "SO_TIMESTAMPING"),
            (41, "SO_WIFI_STATUS"),
            (42, "SO_PEEK_OFF"),
            (43, "SO_NOFCS"),
            (44, "SO_LOCK_FILTER"),
            (47, "SO_MAX_PACING_RATE"),
            (50, "SO_ATTACH_BPF"),
            (53, "SO_CNX_ADVICE"),
            (61, "SO_TXTIME"),
            (63, "SO_TIMESTAMP_NEW"),
            (64, "SO_TIMESTAMPNS_NEW"),
            (65, "SO_TIMESTAMPING_NEW"),
            (67, "SO_SNDTIMEO_NEW"),
            (72, "SO_BUF_LOCK"),
            (75, "SO_RCVMARK"),
            (82, "SO_RCVPRIORITY"),
        ],
    ),
    (
        libc::IPPROTO_IP,
        &[
            (4, "IP_OPTIONS"),
            (6, "IP_RECVOPTS"),
            (7, "IP_RETOPTS"),
            (10, "IP_MTU_DISCOVER"),
            (11, "IP_RECVERR"),
            (18, "IP_PASSSEC"),
            (19, "IP_TRANSPARENT"),
            (21, "IP_MINTTL"),
            (23, "IP_CHECKSUM"),
            (25, "IP_RECVFRAGSIZE"),
            (26, "IP_RECVERR_RFC4884"),
            (50, "IP_UNICAST_IF"),
        ],
    ),
    (
        libc::IPPROTO_IPV6,
        &[
            (1, "IPV6_ADDRFORM"),
            (11, "IPV6_FLOWINFO"),
            (75, "IPV6_TRANSPARENT"),
            (77, "IPV6_RECVFRAGSIZE"),
        ],
    ),
    (
        libc::IPPROTO_UDP,
        &[
            (1, "UDP_CORK"),
            (100, "UDP_ENCAP"),
            (101, "UDP_NO_CHECK6_TX"),
            (102, "UDP_NO_CHECK6_RX"),
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            (14, "TCP_MD5SIG"),
            (16, "TCP_THIN_LINEAR_TIMEOUTS"),
            (19, "TCP_REPAIR"),
            (27, "TCP_SAVE_SYN"),
            (30, "TCP_FASTOPEN_CONNECT"),
            (31, "TCP_ULP"),
            (32, "TCP_MD5SIG_EXT"),
            (36, "TCP_INQ"),
            (37, "TCP_TX_DELAY"),
        ],
    ),
];

/// The option's name in the manual pages.
pub fn known(level: i32, option: i32) -> Option<&'static str> {
    let (_, options) = LEVELS.iter().find(|(number, _)| *number == level)?;
    options.iter().find(|(number, _)| *number == option).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document is what a test of each option on the kernel and on the library wrote.
    #[test]
    fn every_option_that_hands_a_socket_over_has_its_name() {
        let document = include_str!("../../../../docs/socket-options.md");
        let mut count = 0;
        let mut level = 0;
        for line in document.lines() {
            let levels = [
                ("SOL_SOCKET", libc::SOL_SOCKET),
                ("IPPROTO_IPV6", libc::IPPROTO_IPV6),
                ("IPPROTO_IP", libc::IPPROTO_IP),
                ("IPPROTO_UDP", libc::IPPROTO_UDP),
                ("IPPROTO_TCP", libc::IPPROTO_TCP),
            ];
            if line.starts_with("## ")
                && let Some((_, number)) = levels.iter().find(|(name, _)| line.contains(name))
            {
                level = *number;
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if let [_, option, number, of_udp, of_tcp, ..] = cells[..]
                && [of_udp, of_tcp].contains(&"hands over")
                && let Ok(number) = number.parse()
            {
                assert_eq!(known(level, number), Some(option));
                count += 1;
            }
        }
        assert!(count > 40, "{count} options");
    }
}
