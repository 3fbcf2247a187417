//! A Python program that does, statement by statement, what the test says.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::program::{output_file, wait_for_end};
use super::{Program, Traffic};

/// Reads statements, one hexadecimal line each; answers with the value or the exception.
const STAGE: &str = r#"
import errno, fcntl, os, select, signal, socket, struct, sys, threading, time
from socket import *
def udp(at=None, peer=None, timeout=15):
    s = socket(AF_INET6 if ':' in (at or peer or [''])[0] else AF_INET, SOCK_DGRAM)
    s.settimeout(timeout)
    if at: s.bind(at)
    if peer: s.connect(peer)
    return s
def pattern(size, seed=0):
    block = bytes((i * 7 + seed * 13 + (i >> 8) * 31) & 255 for i in range(min(size, 65536)))
    return block
def echo(s, count=1):
    for _ in range(count):
        data, peer = s.recvfrom(65535)
        s.sendto(data, peer)
    return len(data)
def drain(s):
    got = []
    s.setblocking(False)
    try:
        while True: got.append(s.recv(65535))
    except BlockingIOError: pass
    s.settimeout(15)
    return got
def threads():
    return len(os.listdir('/proc/self/task'))
stage = globals()
for line in sys.stdin:
    code = bytes.fromhex(line).decode()
    try:
        try: value = eval(compile(code, '<test>', 'eval'), stage)
        except SyntaxError: value = exec(compile(code, '<test>', 'exec'), stage)
        answer = '=' + repr(value)
    except BaseException as problem:
        if isinstance(problem, SystemExit): raise
        answer = '!' + type(problem).__name__ + ': ' + str(problem)
    sys.stdout.write(answer + '\n')
    sys.stdout.flush()
"#;

/// sendmmsg() and recvmmsg(), which Python does not have, of messages of five bytes. `to` names their destinations, `tell` numbers them, and
/// after recvmmsg() `got` has the messages.
pub const BURSTS: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
class iovec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
class mmsghdr(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('namelen', ctypes.c_uint32), ('iov', ctypes.c_void_p),
                ('iovlen', ctypes.c_size_t), ('control', ctypes.c_void_p),
                ('controllen', ctypes.c_size_t), ('flags', ctypes.c_size_t), ('done', ctypes.c_size_t)]
got = []
def messages(call, s, count, *rest, flags=0, to=None, tell=None, sizes=None):
    rooms = [ctypes.create_string_buffer(tell(at) if tell else b'', 5) for at in range(count)]
    vectors = [iovec(ctypes.addressof(rooms[at]), sizes[at] if sizes else 5) for at in range(count)]
    names = [ctypes.create_string_buffer(struct.pack('=H', AF_INET) + struct.pack('!H', to[at][1])
                                         + inet_aton(to[at][0]) + bytes(8), 16)
             for at in range(count if to else 0)]
    array = (mmsghdr * count)()
    for at in range(count):
        array[at].iov, array[at].iovlen = ctypes.addressof(vectors[at]), 1
        if to: array[at].name, array[at].namelen = ctypes.addressof(names[at]), 16
    done = call(s.fileno(), array, count, flags, *rest)
    got[:] = [rooms[at].raw[:array[at].done] for at in range(max(done, 0))]
    return done
";

/// How long one statement may take.
const STATEMENT: Duration = Duration::from_secs(30);

pub struct Puppet {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    stderr: PathBuf,
    stats: PathBuf,
}

impl Puppet {
    /// Starts a Python program as it was prepared: with or without the library, in what
    /// environment. The script follows the arguments that are already there.
    #[track_caller]
    pub fn start(program: Program<'_>) -> Puppet {
        let (place, mut command) = program.into_parts();
        let (script, stderr) = (place.file("stage.py"), output_file(place));
        std::fs::write(&script, STAGE).expect("a script");
        command.arg("-u").arg(&script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&stderr).expect("an output file"));
        let mut child = place.spawn(&mut command).expect("python3 is installed");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, answers) = channel();
        // Ends with the program, whose stdout it reads.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stats = place.file(&format!("stats.{}", child.id()));
        Puppet { child, stdin, answers, stderr, stats }
    }

    /// Has a statement or expression done; returns the `repr` of its value. Panics if it raises.
    #[track_caller]
    pub fn run(&mut self, code: &str) -> String {
        self.begin(code);
        self.end(code)
    }

    /// As [`Puppet::run`] for what must raise; returns `Exception: text`.
    #[track_caller]
    pub fn raises(&mut self, code: &str) -> String {
        self.begin(code);
        self.exception(code)
    }

    /// The end of a statement that [`Puppet::begin`] started and that must raise.
    #[track_caller]
    pub fn exception(&mut self, code: &str) -> String {
        match self.answer(code) {
            Ok(value) => panic!("{code}: no exception but {value}"),
            Err(exception) => exception,
        }
    }

    /// Starts a statement that will not end before something else happens; [`Puppet::end`] waits.
    #[track_caller]
    pub fn begin(&mut self, code: &str) {
        let mut line: String = code.bytes().map(|byte| format!("{byte:02x}")).collect();
        line.push('\n');
        let stdin = self.stdin.as_mut().expect("the puppet was not ended");
        if let Err(error) = stdin.write_all(line.as_bytes()) {
            panic!("{code}: the program is gone ({error})\n{}", self.stderr());
        }
    }

    #[track_caller]
    pub fn end(&mut self, code: &str) -> String {
        self.answer(code).unwrap_or_else(|e| panic!("{code}: {e}\n{}", self.stderr()))
    }

    #[track_caller]
    fn answer(&mut self, code: &str) -> Result<String, String> {
        let line = match self.answers.recv_timeout(STATEMENT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{code}: no answer after {STATEMENT:?}\n{}", self.stderr())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = wait_for_end(&mut self.child, Instant::now() + STATEMENT);
                panic!("{code}: the program ended ({status:?})\n{}", self.stderr())
            }
        };
        match line.strip_prefix('=') {
            Some(value) => Ok(value.into()),
            None => Err(line.trim_start_matches('!').into()),
        }
    }

    /// The number that an expression yields.
    #[track_caller]
    pub fn number(&mut self, code: &str) -> i64 {
        let value = self.run(code);
        value.parse().unwrap_or_else(|_| panic!("{code} is no number: {value}"))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the main thread sleeps in the kernel; returns the state that says so.
    #[track_caller]
    pub fn wait_until_asleep(&self) -> String {
        let path = format!("/proc/{0}/task/{0}/stat", self.id());
        let mut seen = 0;
        super::wait_for("the program sleeps", || {
            let text = std::fs::read_to_string(&path).ok()?;
            let state = text.rsplit_once(") ")?.1.split_whitespace().next()?.to_owned();
            // A few looks in a row, not a passing wait for a lock.
            seen = if state == "S" { seen + 1 } else { 0 };
            (seen >= 10).then_some(state)
        })
    }

    /// What it has printed on stderr so far: its own tracebacks and the library's lines.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Lets the program end by itself; returns what the library counted.
    #[track_caller]
    pub fn finish(&mut self) -> Traffic {
        self.stdin = None;
        match wait_for_end(&mut self.child, Instant::now() + STATEMENT) {
            Some(status) if status.success() => Traffic::read(&self.stats),
            status => panic!("the program ended with {status:?}\n{}", self.stderr()),
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.kill();
    }
}
