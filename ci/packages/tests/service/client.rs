//! A process that speaks with the daemon as the library does, without being the library: `agent.c`.

use std::path::PathBuf;
use std::process::Command;

use packages::Run;

/// The compiled program, removed when dropped.
pub struct Agent {
    folder: PathBuf,
}

impl Agent {
    pub fn compile() -> Agent {
        let folder = std::env::temp_dir().join(format!("vma-agent-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a new folder");
        let agent = Agent { folder };
        let source = packages::workspace().join("ci/packages/tests/service/agent.c");
        let mut compiler = Command::new("gcc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-static", "-o"]);
        compiler.arg(agent.program()).arg(source).succeeds();
        agent
    }

    pub fn program(&self) -> PathBuf {
        self.folder.join("agent")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
