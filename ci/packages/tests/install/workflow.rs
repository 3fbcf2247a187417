//! The workflow for a public CI: well-formed, and it calls scripts that exist.

use std::fs;
use std::process::Command;

use packages::{Run, workspace};

/// Prints the commands of all steps.
const COMMANDS: &str = r#"
import sys, yaml
workflow = yaml.safe_load(open(sys.argv[1]))
# "on" is a boolean in YAML 1.1, which this parser reads.
assert workflow.get("on", workflow.get(True)), "nothing starts it"
for job in workflow["jobs"].values():
    assert job["runs-on"] and job["steps"]
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step), step
        print(step.get("run", ""))
"#;

#[test]
fn the_workflow_is_well_formed_and_calls_scripts_that_exist() {
    let folder = workspace().join(".github/workflows");
    let mut called = Vec::new();
    for entry in fs::read_dir(&folder).expect("there are workflows") {
        let path = entry.expect("a readable folder").path();
        let commands = Command::new("python3").args(["-c", COMMANDS]).arg(&path).succeeds();
        for word in commands.split_whitespace().filter(|word| word.starts_with("ci/")) {
            assert!(workspace().join(word).is_file(), "{}: no {word}", path.display());
            called.push(word.to_owned());
        }
    }
    for script in ["ci/test", "ci/build-packages"] {
        assert!(called.iter().any(|word| word == script), "{script} is not called: {called:?}");
    }
}
