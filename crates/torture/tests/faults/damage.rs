//! Four kilobytes of a file overwritten: the next start names it, serves what is whole, and stops when it
//! is asked to; or it refuses with words.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use wayhold_torture::black_box::client::Client;
use wayhold_torture::black_box::load::Plan;
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;

/// Bytes that are overwritten.
const DAMAGE: usize = 4096;

/// Where in the file.
#[derive(Clone, Copy, Debug)]
enum Spot {
    Start,
    Middle,
}

/// One case: which file, where, and how many events its damage may cost.
struct Case {
    /// Beginning and end of the file's name within the data directory.
    file: (&'static str, &'static str),
    spot: Spot,
    lost_max: usize,
}

#[test]
fn a_damaged_file_is_named_and_the_rest_is_served() {
    let root = tempfile::tempdir().unwrap();
    let (data, sent) = grown(root.path());
    // A page of a WAL ends what follows it in the file.
    let segment = 400;
    for (number, case) in [
        Case {
            file: ("g1/s0/2", ".db-wal"),
            spot: Spot::Middle,
            lost_max: segment,
        },
        Case {
            file: ("g1/s0/2", ".db-wal"),
            spot: Spot::Start,
            lost_max: segment,
        },
        Case {
            file: ("g1/s0/2", ".db"),
            spot: Spot::Start,
            lost_max: segment,
        },
        Case {
            file: ("g1/s0/1", ".idx"),
            spot: Spot::Middle,
            lost_max: 0,
        },
        Case {
            file: ("g1/s0/1", ".idx"),
            spot: Spot::Start,
            lost_max: 0,
        },
        Case {
            file: ("g1/s0/mark", ""),
            spot: Spot::Start,
            lost_max: 0,
        },
        Case {
            file: ("g1/s0/state-", ".db"),
            spot: Spot::Start,
            lost_max: 0,
        },
        Case {
            file: ("g1/s0/state-", ".db-wal"),
            spot: Spot::Middle,
            lost_max: 0,
        },
        Case {
            file: ("catalog", ".db"),
            spot: Spot::Start,
            lost_max: 0,
        },
        Case {
            file: ("catalog", ".db-wal"),
            spot: Spot::Middle,
            lost_max: 0,
        },
    ]
    .into_iter()
    .enumerate()
    {
        let folder = root.path().join(format!("case{number}"));
        std::fs::create_dir(&folder).unwrap();
        copy(&data, &folder.join("data"));
        let Some(file) = find(&folder.join("data"), case.file) else {
            println!("{:?}: no such file", case.file);
            continue;
        };
        if damage(&file, case.spot) {
            serve_damaged(&folder, &file, &case, sent);
        }
    }
}

/// A data directory with several segments and everything pending at one destination, as a kill leaves it.
fn grown(root: &Path) -> (PathBuf, usize) {
    let folder = root.join("grown");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(1, Mood::Away);
    let mut server = Server::prepare(&folder, receiver.address, SMALL_SEGMENTS);
    server.start();
    let plan = Plan::new(server.address, 1);
    let mut client = Client::new(server.address);
    let mut sent = 0;
    for _ in 0..100 {
        let events: Vec<_> = (0..8).map(|_| plan.event()).collect();
        sent += events.iter().filter(|event| event.is_for_hook()).count();
        assert_eq!(plan.send(&mut client, &events).unwrap().status, 202);
    }
    server.kill();
    (server.data(), sent)
}

fn serve_damaged(folder: &Path, file: &Path, case: &Case, sent: usize) {
    let receiver = Receiver::start(1, Mood::Well);
    let mut server = Server::prepare(folder, receiver.address, SMALL_SEGMENTS);
    let name = file.file_name().unwrap().to_str().unwrap();
    let stem = name.split('.').next().unwrap();
    let what = format!("{name} damaged at the {:?}", case.spot);
    server.spawn();
    if let Err(status) = server.ready_or_ended() {
        let log = server.log();
        assert!(
            matches!(status.code(), Some(1 | 2)),
            "{what}: ended with {status}\n{log}"
        );
        assert!(log.contains(stem), "{what}: not named\n{log}");
        println!(
            "{what}: refused, {}",
            log.lines().last().unwrap_or_default()
        );
        return;
    }
    let arrived = arrivals_until_quiet(&receiver, sent);
    assert!(receiver.arrivals().iter().all(|it| it.intact), "{what}");
    let degraded = server.status()["degraded"].to_string();
    let lost = sent - arrived;
    println!("{what}: {lost} lost, {degraded}");
    assert!(
        lost <= case.lost_max,
        "{what}: {lost} events lost\n{degraded}"
    );
    assert!(
        lost == 0 || degraded.contains(stem),
        "{what}: {lost} events lost and not named"
    );
    let (status, _) = server.terminate();
    assert!(status.success(), "{what}: stopped with {status}");
}

/// How many events have arrived when all have, or when none has for a while.
fn arrivals_until_quiet(receiver: &Receiver, sent: usize) -> usize {
    let (mut arrived, mut quiet) = (0, 0);
    while arrived < sent && quiet < 100 {
        std::thread::sleep(Duration::from_millis(10));
        let numbers: BTreeSet<_> = receiver.arrivals().iter().map(|it| it.number).collect();
        quiet = if numbers.len() > arrived {
            0
        } else {
            quiet + 1
        };
        arrived = numbers.len();
    }
    arrived
}

/// Overwrites a part; `false` where the file is too short to have one.
fn damage(path: &Path, spot: Spot) -> bool {
    let file = File::options().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let at = match spot {
        Spot::Start => 0,
        Spot::Middle => length / 2,
    };
    let bytes = DAMAGE.min(usize::try_from(length - at).unwrap());
    file.write_all_at(&vec![0xa5; bytes], at).unwrap();
    bytes > 0
}

fn find(data: &Path, (begin, end): (&str, &str)) -> Option<PathBuf> {
    let whole = data.join(begin);
    let (folder, begin) = (whole.parent()?, whole.file_name()?.to_str()?);
    let names = std::fs::read_dir(folder).unwrap().flatten();
    let fits = |name: &str| {
        let rest = name
            .strip_prefix(begin)
            .and_then(|rest| rest.strip_suffix(end));
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    };
    let mut fitting: Vec<_> = names
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|it| it.to_str())
                .is_some_and(fits)
        })
        .collect();
    fitting.sort();
    fitting.into_iter().next()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}
