//! Programs, run to their end.

use std::process::{Command, Output};

/// What tests do with a program. Each panics, with all that the program said, when it does not do
/// what is expected.
pub trait Run {
    /// Runs it, which must go well; returns what it printed on standard output.
    fn succeeds(&mut self) -> String;

    /// The same; returns standard output and, after it, standard error.
    fn output_of_success(&mut self) -> String;

    /// Runs it, which must fail; returns the exit status and all it printed.
    fn fails(&mut self) -> (i32, String);
}

impl Run for Command {
    #[track_caller]
    fn succeeds(&mut self) -> String {
        let output = run(self);
        assert!(output.status.success(), "{}", report(self, &output));
        text(&output.stdout)
    }

    #[track_caller]
    fn output_of_success(&mut self) -> String {
        let output = run(self);
        assert!(output.status.success(), "{}", report(self, &output));
        text(&output.stdout) + &text(&output.stderr)
    }

    #[track_caller]
    fn fails(&mut self) -> (i32, String) {
        let output = run(self);
        let Some(code) = output.status.code().filter(|code| *code != 0) else {
            panic!("this should have failed: {}", report(self, &output));
        };
        (code, text(&output.stdout) + &text(&output.stderr))
    }
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn report(command: &Command, output: &Output) -> String {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    format!("{command:?}\n{}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", output.status)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
