//! The loop of the load generator. Closed: a connection that has its answer sends the next request.
//! Open: requests start at fixed times, on any free connection; when none is free they queue up, and
//! their latency counts from when they should have started, so a stall of the server is not hidden, also
//! not one at the end: what should have been sent by then is sent, and its answer awaited.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::args::{Args, Stop};
use super::connection::{Answered, Connection};
use super::latencies::{Latencies, Report};
use super::request::Requests;

/// Longest sleep without an answer before the clock is looked at again.
const TICK: Duration = Duration::from_millis(100);
/// Longest time that an open loop goes on after its end, for answers to what should have been sent before.
const OVERTIME_MAX: Duration = Duration::from_secs(30);
/// Bytes read at once: the answer to a hundred events has about ten kibibytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// One load under way.
pub struct Generator {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Open loop only: connections without a request.
    free: VecDeque<usize>,
    requests: Requests,
    /// Time between two intended starts; none in a closed loop.
    interval: Option<Duration>,
    stop: Stop,
}

impl Generator {
    /// Opens all connections.
    ///
    /// # Errors
    /// When the server does not take them.
    pub fn connect(args: &Args) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let connections = (0..args.connections)
            .map(|_| Connection::open(args.target))
            .collect::<io::Result<Vec<_>>>()?;
        for (index, connection) in connections.iter().enumerate() {
            epoll::add(
                &epoll,
                connection,
                EventData::new_u64(index as u64),
                EventFlags::IN,
            )?;
        }
        Ok(Self {
            epoll,
            free: (0..connections.len()).collect(),
            connections,
            requests: match args.commands {
                true => Requests::commands(args.target, args.keys, &args.prefix),
                false => Requests::new(args.target, (args.batch, args.keys), &args.prefix),
            },
            interval: args.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            stop: args.stop(),
        })
    }

    /// Sends until the load ends, or until it is `told` to.
    ///
    /// # Errors
    /// When a connection breaks: then there is nothing to report.
    pub fn run(mut self, told: &AtomicBool) -> io::Result<Report> {
        let started = Instant::now();
        let (measure_from, mut end) = match self.stop {
            Stop::After { warmup, measured } => {
                (started + warmup, Some(started + warmup + measured))
            }
            Stop::Events(_) => (started, None),
        };
        let mut due = started;
        if self.interval.is_none() {
            while let Some(index) = self.free.pop_front() {
                self.send(index, started)?;
            }
        }
        let mut latencies = Latencies::default();
        let mut events = Vec::with_capacity(self.connections.len());
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            self.start_due(&mut due, end)?;
            self.wait(self.next_start(due, end), &mut events)?;
            for event in events.drain(..) {
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(answered) = self.ready(index, event.flags, &mut scratch)? else {
                    continue;
                };
                let now = Instant::now();
                record(&mut latencies, answered, now, measure_from);
                match self.interval {
                    None => self.send(index, now)?,
                    Some(_) => self.free.push_back(index),
                }
            }
            let now = Instant::now();
            if told.load(Ordering::Acquire) {
                end = Some(end.map_or(now, |end| end.min(now)));
            }
            let enough = match self.stop {
                Stop::After { .. } => false,
                Stop::Events(events) => latencies.events(self.requests.batch()) >= events,
            };
            if enough || end.is_some_and(|end| self.is_over(now, due, end)) {
                return Ok(latencies.report(self.requests.batch(), now - measure_from));
            }
        }
    }

    /// Whether a load that ends at `end` need not go on.
    fn is_over(&self, now: Instant, due: Instant, end: Instant) -> bool {
        let owes_nothing =
            self.interval.is_none() || due >= end && self.free.len() == self.connections.len();
        now >= end && (owes_nothing || now >= end + OVERTIME_MAX)
    }

    /// When the next request starts, where that is for the clock to say.
    fn next_start(&self, due: Instant, end: Option<Instant>) -> Option<Instant> {
        let starts = self.interval.is_some() && !self.free.is_empty();
        (starts && end.is_none_or(|end| due < end)).then_some(due)
    }

    /// Starts what should have started by now, as far as connections are free.
    fn start_due(&mut self, due: &mut Instant, end: Option<Instant>) -> io::Result<()> {
        let Some(interval) = self.interval else {
            return Ok(());
        };
        while self
            .next_start(*due, end)
            .is_some_and(|start| start <= Instant::now())
        {
            let Some(index) = self.free.pop_front() else {
                return Ok(());
            };
            self.send(index, *due)?;
            *due += interval;
        }
        Ok(())
    }

    /// Waits for answers, and in an open loop at most until the next request is due.
    fn wait(&self, start: Option<Instant>, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let timeout = if let Some(start) = start {
            // epoll counts in milliseconds, which is coarse here: ppoll on the epoll counts in
            // nanoseconds.
            let left = timespec(start.saturating_duration_since(Instant::now()));
            poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&left))?;
            AT_ONCE
        } else {
            timespec(TICK)
        };
        epoll::wait(&self.epoll, spare_capacity(events), Some(&timeout))?;
        Ok(())
    }

    fn send(&mut self, index: usize, intended_at: Instant) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index) else {
            return Ok(());
        };
        connection.send(self.requests.prepare(), intended_at)?;
        if connection.wants_room() {
            let flags = EventFlags::IN | EventFlags::OUT;
            epoll::modify(
                &self.epoll,
                &*connection,
                EventData::new_u64(index as u64),
                flags,
            )?;
        }
        Ok(())
    }

    fn ready(
        &mut self,
        index: usize,
        flags: EventFlags,
        scratch: &mut [u8],
    ) -> io::Result<Option<Answered>> {
        let Some(connection) = self.connections.get_mut(index) else {
            return Ok(None);
        };
        if flags.contains(EventFlags::OUT) && connection.wants_room() {
            connection.flush()?;
            if !connection.wants_room() {
                let data = EventData::new_u64(index as u64);
                epoll::modify(&self.epoll, &*connection, data, EventFlags::IN)?;
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            connection.receive(scratch)
        } else {
            Ok(None)
        }
    }
}

fn record(latencies: &mut Latencies, answered: Answered, now: Instant, measure_from: Instant) {
    match answered.status {
        202 if now < measure_from => latencies.warmed_up(),
        202 => latencies.acknowledged(now - answered.intended_at),
        status => latencies.refused(status),
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// Answers one connection after another, each request after a while.
    fn slow_server(listener: &TcpListener) -> io::Result<()> {
        let (stream, _) = listener.accept()?;
        let mut input = BufReader::new(stream.try_clone()?);
        let mut output = stream;
        let mut length = 0;
        let mut line = String::new();
        while input.read_line(&mut line)? > 0 {
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                input.read_exact(&mut vec![0; length])?;
                std::thread::sleep(Duration::from_millis(2));
                output.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")?;
            }
            line.clear();
        }
        Ok(())
    }

    #[test]
    fn an_open_loop_sends_all_that_is_due_however_late_the_answers_are() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || slow_server(&listener));
        let flags = ["load", "--connections=1", "--rate=1000", "--warmup=0"];
        let flags = flags.into_iter().chain(["--seconds=0.05", "--target"]);
        let args = Cli::parse_from(flags.chain([target.as_str()])).args;
        let load = Generator::connect(&args).unwrap();
        // Fifty are due in these fifty milliseconds, and answering them takes a hundred at least.
        let report = load.run(&AtomicBool::new(false)).unwrap();
        assert_eq!(report.requests, 50);
        assert!(report.longest_ms > 50.0, "{report:?}");
        server.join().unwrap().unwrap();
    }
}
