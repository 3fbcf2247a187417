//! Programs that the original was certified with: NetPIPE, and middleware that passes messages on. (sockperf has files of its own; netperf
//! is in no distribution's free part.)

use crate::harness::{Ends, Library, Side};

// covers: INS-46
#[test]
fn netpipe_sends_messages_of_many_sizes_and_checks_them() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        // Each end measures round trips, and compares the bytes (-i).
        for words in ["-u 131072 -n 20", "-i -u 16384 -n 5"] {
            let watch = ends.watch();
            let server = ends.server("NPtcp").args(words).start_shown();
            ends.net.wait_for_listener(Side::A, 5002);
            let client = ends.client("NPtcp").args("-h 10.99.0.1").args(words).run().ok();
            let server = server.wait().ok();
            let sizes = client.stderr.lines().filter(|line| line.contains("bytes")).count();
            assert!(sizes > 20, "{words}\n{}{}", client.stdout, client.stderr);
            for output in [&server, &client] {
                let told = output.stdout.clone() + &output.stderr;
                assert!(!told.contains("Integrity check failed"), "{told}");
            }
            watch.still(2);
        }
    }
}

// covers: INS-46
#[test]
fn a_broker_delivers_every_message_in_order() {
    const MESSAGES: usize = 5000;
    for library in Library::ALL {
        let ends = Ends::new(library);
        let file = ends.net.file("broker.conf");
        // Root is given up only if it is told to be.
        let lines =
            "listener 1883 10.99.0.1\nallow_anonymous true\nuser root\nmax_queued_messages 0\n";
        std::fs::write(&file, lines).unwrap();
        let watch = ends.watch();
        let broker = ends.server("mosquitto").arg("-c").arg(file.to_str().unwrap()).start_shown();
        ends.net.wait_for_listener(Side::A, 1883);
        let of_topic = "-h 10.99.0.1 -t topic -q 1";
        // The broker keeps messages for it from its first visit on.
        let subscriber = |words: &str| {
            let program = ends.client("mosquitto_sub").args(of_topic).args("-i reader -c");
            program.args(words).start_shown()
        };
        subscriber("-E").wait().ok();
        let reader = subscriber(&format!("-C {MESSAGES}"));
        let text: String = (0..MESSAGES).map(|number| format!("message {number}\n")).collect();
        let lines = ends.net.file("lines");
        std::fs::write(&lines, &text).unwrap();
        let publisher = ends.client("mosquitto_pub").args(of_topic).arg("-l");
        publisher.stdin(std::fs::File::open(&lines).unwrap().into()).run().ok();
        let got = reader.wait().ok().stdout;
        let got: Vec<&str> = got.lines().filter(|line| line.starts_with("message ")).collect();
        assert!(got == text.lines().collect::<Vec<_>>(), "{} of {MESSAGES}", got.len());
        watch.still(3);
        drop(broker);
    }
}
