use super::*;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A file of this name and content.
#[derive(Debug)]
struct Written {
    name: &'static str,
    content: Vec<u8>,
}

fn written(name: &'static str, content: impl Into<Vec<u8>>) -> Written {
    Written {
        name,
        content: content.into(),
    }
}

impl Written {
    fn read(&self) -> Result<Trace, TraceError> {
        Trace::parse(Path::new(self.name), self.content.as_slice())
    }

    fn requests(&self) -> Vec<Request> {
        self.read()
            .unwrap()
            .requests
            .into_iter()
            .map(Arc::unwrap_or_clone)
            .collect()
    }

    fn error(&self) -> String {
        self.read().unwrap_err().to_string()
    }
}

fn request(arrival: Duration, input_tokens: u32, output_tokens: u32, hash_ids: &[u64]) -> Request {
    Request {
        arrival,
        input_tokens,
        output_tokens,
        hash_ids: hash_ids.to_vec(),
    }
}

#[test]
fn mooncake_lines_are_read() {
    let file = written(
        "any.name",
        "{\"timestamp\": 3000, \"input_length\": 513, \"output_length\": 7, \"hash_ids\": [0, 18446744073709551615]}\r\n\
         \n\
         {\"hash_ids\":[5],\"timestamp\":4500,\"input_length\":512,\"output_length\":1,\"chat\":\"x\"}",
    );
    assert_eq!(
        file.requests(),
        [
            request(ms(0), 513, 7, &[0, u64::MAX]),
            request(ms(1_500), 512, 1, &[5])
        ]
    );
}

#[test]
fn azure_lines_are_read_with_all_their_digits() {
    let file = written(
        "any.name",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
         2023-11-16 23:59:59.9799600,4808,10\r\n\
         2023-11-17 00:00:00.0319601,3180,8",
    );
    let second = Duration::from_nanos(52_000_100);
    assert_eq!(
        file.requests(),
        [
            request(ms(0), 4_808, 10, &[]),
            request(second, 3_180, 8, &[])
        ]
    );
}

#[test]
fn requests_are_put_in_order_without_swapping_equals() {
    let line = |at: u64, output: u32| {
        format!(
            "{{\"timestamp\":{at},\"input_length\":1,\"output_length\":{output},\"hash_ids\":[0]}}\n"
        )
    };
    let lines: String = (1..=100)
        .map(|n| line(u64::from(20 - n % 2 * 10), n))
        .collect();
    let order: Vec<_> = written("t.jsonl", lines)
        .requests()
        .iter()
        .map(|r| (r.arrival, r.output_tokens))
        .collect();
    let odd = (1..=100).step_by(2).map(|n| (ms(0), n));
    let even = (2..=100).step_by(2).map(|n| (ms(10), n));
    assert_eq!(order, odd.chain(even).collect::<Vec<_>>());
}

const GOOD: &str = "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}\n";

#[track_caller]
fn expect_mooncake_error(line: &str, reason: &str) {
    let file = written("t.jsonl", format!("{GOOD}\n{line}\n{GOOD}"));
    assert_eq!(file.error(), format!("t.jsonl:3: {reason}"));
}

#[test]
fn a_bad_mooncake_line_is_named_with_its_reason() {
    let row = |timestamp: &str, input: &str, ids: &str| {
        format!(
            "{{\"timestamp\":{timestamp},\"input_length\":{input},\"output_length\":1,\"hash_ids\":{ids}}}"
        )
    };
    expect_mooncake_error(
        "{\"timestamp\":0",
        "not a Mooncake request: EOF while parsing an object at column 14",
    );
    expect_mooncake_error(
        "{\"timestamp\":0}",
        "not a Mooncake request: missing field `input_length` at column 15",
    );
    expect_mooncake_error(
        &row("-5", "1", "[0]"),
        "not a Mooncake request: invalid value: integer `-5`, expected u64 at column 15",
    );
    expect_mooncake_error(
        &row("0", "4294967296", "[0]"),
        "not a Mooncake request: invalid value: integer `4294967296`, expected u32 at column 40",
    );
    expect_mooncake_error(
        &row("1e30", "1", "[0]"),
        "not a Mooncake request: invalid type: floating point `1e+30`, expected u64 at column 17",
    );
    expect_mooncake_error(
        &row("NaN", "1", "[0]"),
        "not a Mooncake request: expected value at column 14",
    );
    expect_mooncake_error(
        &row("0", "0", "[]"),
        "input_length is 0: a request has at least one token of each kind",
    );
    expect_mooncake_error(
        &row("0", "513", "[0]"),
        "1 hash ids for 513 prompt tokens: 2 expected, one for each 512",
    );
    expect_mooncake_error(
        &row("31536000001", "1", "[0]"),
        "arrivals are more than 365 days apart",
    );
}

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

#[track_caller]
fn expect_azure_error(line: &str, reason: &str) {
    let good = "2023-11-16 18:17:03.9799600,4808,10\r\n";
    let file = written("t.csv", format!("{HEADER}{good}\r\n{line}\r\n{good}"));
    assert_eq!(file.error(), format!("t.csv:4: {reason}"));
}

#[test]
fn a_bad_azure_line_is_named_with_its_reason() {
    expect_azure_error(
        "2023-11-16 18:17:04,4808",
        "2 fields where the header has 3",
    );
    expect_azure_error(
        "2023-13-16 18:17:04,4808,10",
        "TIMESTAMP: \"2023-13-16 18:17:04\" is not a time like 2023-11-16 18:17:03.9799600",
    );
    expect_azure_error(
        "2023-11-16 18:17:04,-1,10",
        "ContextTokens: \"-1\" is not a number of tokens",
    );
    expect_azure_error(
        "2023-11-16 18:17:04,NaN,10",
        "ContextTokens: \"NaN\" is not a number of tokens",
    );
    expect_azure_error(
        "2023-11-16 18:17:04,1,4294967296",
        "GeneratedTokens: \"4294967296\" is not a number of tokens",
    );
    expect_azure_error(
        "2023-11-16 18:17:04,1,0",
        "GeneratedTokens is 0: a request has at least one token of each kind",
    );
    expect_azure_error(
        "2025-11-16 18:17:04,1,1",
        "arrivals are more than 365 days apart",
    );
}

#[test]
fn a_file_that_is_no_trace_is_refused() {
    assert_eq!(
        written("t.jsonl", "").error(),
        "t.jsonl: the trace has no requests"
    );
    assert_eq!(
        written("t.csv", HEADER).error(),
        "t.csv: the trace has no requests"
    );
    assert_eq!(
        written("t.csv", "").error(),
        "t.csv:1: the header has no column TIMESTAMP"
    );
    assert_eq!(
        written("t.csv", "TIMESTAMP,Tokens\r\n").error(),
        "t.csv:1: the header has no column ContextTokens"
    );
    assert_eq!(
        written("t.jsonl", [GOOD.as_bytes(), b"\xff\n"].concat()).error(),
        "t.jsonl:2: not UTF-8"
    );
    assert_eq!(
        written("t.csv", [HEADER.as_bytes(), b"\xff,1,1"].concat()).error(),
        "t.csv:2: not UTF-8"
    );
    assert_eq!(
        written("t.txt", "hello\n").error(),
        "t.txt:1: not a Mooncake request: expected value at column 1"
    );
    let missing = Trace::read(Path::new("no/such/file"))
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("no/such/file: "), "{missing}");
}

#[test]
fn a_byte_order_mark_and_gzip_are_named() {
    for (name, text) in [("t.jsonl", GOOD), ("t.csv", HEADER)] {
        let marked = written(name, [b"\xef\xbb\xbf", text.as_bytes()].concat());
        let reason =
            "the file starts with a UTF-8 byte order mark: take its first three bytes away";
        assert_eq!(marked.error(), format!("{name}:1: {reason}"));
    }
    let packed = written("t.jsonl.gz", b"\x1f\x8b\x08\x00\x00");
    let reason = "the file is compressed with gzip: unpack it first";
    assert_eq!(packed.error(), format!("t.jsonl.gz:1: {reason}"));
}

fn arriving(arrivals: &[u64]) -> Trace {
    let requests = arrivals
        .iter()
        .map(|at| Arc::new(request(ms(*at), 1, 1, &[])));
    Trace {
        name: String::new(),
        requests: requests.collect(),
    }
}

fn arrivals(trace: &Trace) -> Vec<Duration> {
    trace
        .requests
        .iter()
        .map(|request| request.arrival)
        .collect()
}

#[test]
fn a_pulse_is_spread_up_to_the_next_one() {
    let mut trace = arriving(&[0, 0, 0, 3_000, 4_000, 4_000]);
    trace.spread();
    assert_eq!(
        arrivals(&trace),
        [0, 1_000, 2_000, 3_000, 4_000, 4_500].map(ms)
    );
}

#[test]
fn a_lone_pulse_has_nothing_to_spread_over() {
    let mut trace = arriving(&[0, 0]);
    trace.spread();
    assert_eq!(arrivals(&trace), [ms(0), ms(0)]);
}

#[test]
fn the_rate_is_scaled() {
    let mut trace = arriving(&[0, 10, 3_000]);
    trace.scale_rate(2.0).unwrap();
    assert_eq!(arrivals(&trace), [0, 5, 1_500].map(ms));
    assert_eq!(trace.scale_rate(0.0), Err(ScaleError::NotPositive(0.0)));
    assert!(trace.scale_rate(f64::NAN).is_err());
    assert_eq!(trace.scale_rate(1e-9), Err(ScaleError::TooLong(1e-9)));
    assert_eq!(arrivals(&trace), [0, 5, 1_500].map(ms));
}

#[test]
fn the_built_in_trace_depends_on_its_seed_alone() {
    let trace = Trace::synthetic(7);
    assert_eq!(trace.requests, Trace::synthetic(7).requests);
    assert_ne!(trace.requests, Trace::synthetic(8).requests);
}

#[test]
fn the_built_in_trace_shares_prefixes() {
    let trace = Trace::synthetic(7);
    let mut seen = std::collections::HashSet::new();
    let (mut ids, mut repeated) = (0, 0);
    for request in &trace.requests {
        assert_eq!(
            request.hash_ids.len() as u32,
            request.input_tokens.div_ceil(HASH_TOKENS)
        );
        ids += request.hash_ids.len();
        repeated += request
            .hash_ids
            .iter()
            .filter(|id| !seen.insert(**id))
            .count();
    }
    let share = repeated as f64 / ids as f64;
    assert!((0.5..0.8).contains(&share), "{share}");
}
