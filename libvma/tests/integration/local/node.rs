//! Node as server and client, which listens on `::` and resolves `localhost` to `::1` where both are there; without Node there is
//! nothing to see.

use std::path::Path;

use super::{Local, Under};

const SERVER: &str = "
require('http').createServer((request, answer) => {
    let body = '';
    request.on('data', part => body += part);
    request.on('end', () => answer.end(request.socket.remoteAddress + ' ' + body));
}).listen(8080);";

/// One connection, a question after the other.
const CLIENT: &str = "
const http = require('http'), agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const body = 'x'.repeat(20000);
function ask(left) {
    if (!left) { console.log('all answered'); process.exit(0); }
    const question = http.request({ host: '::1', port: 8080, method: 'POST', agent }, answer => {
        let text = '';
        answer.on('data', part => text += part);
        answer.on('end', () => {
            if (text !== '::1 ' + body) throw new Error(text);
            ask(left - 1);
        });
    });
    question.end(body);
}
ask(500);";

#[track_caller]
fn questions(under: Under) {
    if !Path::new("/usr/bin/node").exists() {
        return;
    }
    let local = Local::new(under);
    let server = local.server("node").arg("-e").arg(SERVER).start_shown();
    local.sandbox.wait_for_listener(8080);
    let watch = local.sandbox.watch();
    local.client("node").arg("-e").arg(CLIENT).run().ok().says("all answered");
    local.check_tcp(&watch, 1, 500 * 40_000);
    drop(server);
}

#[test]
fn node_asks_node_over_ipv6_with_library_on_both_ends() {
    questions(Under::Both);
}

#[test]
fn node_asks_node_over_ipv6_with_library_on_at_most_one_end() {
    for under in super::not_both(Under::Server) {
        questions(under);
    }
}
