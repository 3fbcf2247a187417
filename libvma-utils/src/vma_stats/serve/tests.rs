use super::*;

/// A server that runs while the test does.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let mut cycle = 0;
        let collect = move || {
            cycle += 1;
            let taken = libvma_dev::stats::Taken::default();
            vec![Sample { process: cycle, name: "x".to_owned(), taken, before: None }]
        };
        let thread = std::thread::spawn(move || serve(listener, &seen, collect).unwrap());
        Server { address, stop, thread: Some(thread) }
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.client();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn metrics(&self) -> String {
        self.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    }

    /// So many clients that begin a request and say no more.
    fn slow_clients(&self, count: usize) -> Vec<TcpStream> {
        let begin = |_| {
            let mut stream = self.client();
            // Fails if there was no place for it.
            let _ = stream.write_all(b"GET /met");
            stream
        };
        (0..count).map(begin).collect()
    }

    /// Asks until there is a place.
    fn wait_for_a_place(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let mut stream = self.client();
            let mut answer = String::new();
            let sent = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            if sent
                .and_then(|()| stream.read_to_string(&mut answer))
                .is_ok_and(|_| status(&answer) == "200")
            {
                return;
            }
            std::thread::sleep(PULSE);
        }
        panic!("no answer any more");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}

#[test]
fn the_page_is_made_anew_for_each_request() {
    let server = Server::start();
    for process in 1..=2 {
        let answer = server.metrics();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains(&format!("pid=\"{process}\"")), "{body}");
        assert!(body.ends_with("# EOF\n"), "{body}");
    }
}

#[test]
fn everything_else_is_refused() {
    let server = Server::start();
    let ask = |request: &str| server.ask(request.as_bytes());
    assert_eq!(status(&ask("GET / HTTP/1.1\r\n\r\n")), "404");
    assert_eq!(status(&ask("GET /metrics/x HTTP/1.1\r\n\r\n")), "404");
    assert_eq!(status(&ask("POST /metrics HTTP/1.1\r\n\r\nbody")), "405");
    assert_eq!(status(&ask("\x16\x03\x01 this is TLS\r\n\r\n")), "400");
    assert_eq!(status(&ask(&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD)))), "431");
    assert_eq!(status(&ask(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)))), "431");
    let head = ask("HEAD /metrics?x=y HTTP/1.0\r\n\r\n");
    assert!(status(&head) == "200" && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn slow_clients_keep_nobody_waiting_and_are_turned_away() {
    let server = Server::start();
    let mut slow = server.slow_clients(CLIENTS - 1);
    // All but one of the places are taken.
    assert_eq!(status(&server.metrics()), "200");
    let mut answer = String::new();
    slow[0].read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), "408");
    // And their places are free again: more than the one that was left.
    let _others = server.slow_clients(1);
    server.wait_for_a_place();
}

#[test]
fn a_client_that_goes_away_is_forgotten() {
    let server = Server::start();
    for _ in 0..3 * CLIENTS {
        let mut stream = server.client();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        drop(stream);
    }
    // Those before may still hold all places.
    server.wait_for_a_place();
}
