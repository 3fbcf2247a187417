//! What is configured of a listener. Nothing that changes by itself.

use core::time::Duration;

/// What socket options, parameters and the system's defaults set for a listener.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Answer with cookies when the SYN queue is full (tcp_syncookies = 1).
    pub syn_cookies: bool,
    /// The SYN queue's size for a smaller backlog. The kernel ends a handshake before it looks at the next SYN; here those that came
    /// while no thread polled begin together, and a client with a cookie that then finds the accept queue full hears no more.
    pub least_requests: u32,
    /// New connections tried per second; 0 is no limit (VMA_TCP_MAX_SYN_RATE).
    pub max_syn_rate: u32,
    /// TCP_DEFER_ACCEPT: how long to wait for data.
    pub defer_accept: Option<Duration>,
    /// Retransmissions of a SYN-ACK before the request is given up (tcp_synack_retries).
    pub syn_ack_retries: u8,
    /// The receive window to announce.
    pub window: u32,
    /// The window scale to announce, at most 14; the connection must use the same.
    pub our_window_scale: u8,
    pub sack: bool,
    pub timestamps: bool,
    pub window_scaling: bool,
    pub ecn: bool,
}

impl Default for ListenSettings {
    /// Linux's defaults.
    fn default() -> ListenSettings {
        ListenSettings {
            syn_cookies: true,
            least_requests: 1024,
            max_syn_rate: 0,
            defer_accept: None,
            syn_ack_retries: 5,
            window: 65_535,
            our_window_scale: 7,
            sack: true,
            timestamps: true,
            window_scaling: true,
            ecn: true,
        }
    }
}
