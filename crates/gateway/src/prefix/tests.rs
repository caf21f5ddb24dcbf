use std::borrow::Cow;

use super::*;

fn config() -> PrefixConfig {
    PrefixConfig {
        // Eight bytes.
        chunk_tokens: 2.try_into().unwrap(),
        ..PrefixConfig::default()
    }
}

struct Sut {
    chunker: Chunker,
    index: PrefixIndex,
    began: Instant,
}

impl Sut {
    #[allow(clippy::disallowed_methods, reason = "an epoch to count from")]
    fn new(config: &PrefixConfig) -> Self {
        let began = Instant::now();
        Self {
            chunker: Chunker::new(config),
            index: PrefixIndex::new(config, began),
            began,
        }
    }

    fn chains(&self, text: &str) -> Chains {
        let prompt = Prompt::Text(Cow::Borrowed(text));
        self.chunker.chains(("", ""), &[prompt])
    }

    fn note(&self, text: &str, worker: u64, seconds: u64) {
        let now = self.began + Duration::from_secs(seconds);
        let chains = self.chains(text);
        self.index
            .note(&self.index.known(&chains), worker.into(), now);
    }

    #[track_caller]
    fn expect(&self, text: &str, seconds: u64, expected: &[(u64, u32)]) {
        let now = self.began + Duration::from_secs(seconds);
        let chains = self.chains(text);
        let mut overlaps = self.index.overlaps(&self.index.known(&chains), now);
        overlaps.sort();
        let expected = expected.iter().map(|&(id, chunks)| (id.into(), chunks));
        assert_eq!(
            overlaps,
            expected.collect::<Vec<_>>(),
            "{text} after {seconds} s"
        );
    }
}

#[test]
fn each_worker_has_the_chunks_it_shares_from_the_first_on() {
    let sut = Sut::new(&config());
    sut.note("aaaaaaaabbbbbbbbcccccccc", 1, 0);
    sut.note("aaaaaaaabbbbbbbbdddddddd", 2, 0);
    sut.note("xxxxxxxxbbbbbbbbcccccccc", 3, 0);
    sut.expect("aaaaaaaabbbbbbbbcccccccceeeeeeee", 0, &[(1, 3), (2, 2)]);
    sut.expect("aaaaaaaabbbbbbbbdddddddd", 0, &[(1, 2), (2, 3)]);
    // Less than a chunk is not known.
    sut.expect("aaaaaaa", 0, &[]);
    sut.expect("", 0, &[]);
    sut.expect("bbbbbbbb", 0, &[]);
}

#[test]
fn a_chunk_counts_for_a_worker_so_long_after_it_was_last_sent_there() {
    let sut = Sut::new(&config());
    sut.note("aaaaaaaa", 1, 0);
    sut.note("aaaaaaaa", 2, 300);
    sut.expect("aaaaaaaa", 599, &[(1, 1), (2, 1)]);
    sut.expect("aaaaaaaa", 600, &[(2, 1)]);
    sut.note("aaaaaaaa", 1, 700);
    sut.expect("aaaaaaaa", 899, &[(1, 1), (2, 1)]);
    sut.expect("aaaaaaaa", 900, &[(1, 1)]);
}

#[test]
fn what_was_noted_just_before_is_not_noted_again() {
    let sut = Sut::new(&config());
    sut.note("aaaaaaaa", 1, 0);
    // Within a sixteenth of 600 s.
    sut.note("aaaaaaaa", 1, 37);
    sut.expect("aaaaaaaa", 600, &[]);
    sut.note("bbbbbbbb", 1, 0);
    sut.note("bbbbbbbb", 1, 38);
    sut.expect("bbbbbbbb", 600, &[(1, 1)]);
    // It left in between: what it had is gone.
    sut.note("cccccccc", 1, 0);
    sut.index.forget(WorkerId(1));
    sut.note("cccccccc", 1, 1);
    sut.expect("cccccccc", 1, &[(1, 1)]);
}

#[test]
fn what_a_worker_had_goes_when_it_leaves() {
    let sut = Sut::new(&config());
    sut.note("aaaaaaaabbbbbbbb", 1, 0);
    sut.note("aaaaaaaa", 2, 0);
    sut.index.forget(WorkerId(1));
    sut.expect("aaaaaaaabbbbbbbb", 0, &[(2, 1)]);
    // It returns, and begins anew.
    sut.note("aaaaaaaa", 1, 1);
    sut.expect("aaaaaaaabbbbbbbb", 1, &[(1, 1), (2, 1)]);
}

#[test]
fn ranks_have_caches_of_their_own() {
    let sut = Sut::new(&config());
    let chains = sut.chains("aaaaaaaa");
    let rank = WorkerRank::new(7, 3);
    sut.index.note(&sut.index.known(&chains), rank, sut.began);
    assert_eq!(
        sut.index.overlaps(&sut.index.known(&chains), sut.began),
        [(rank, 1)]
    );
}

#[test]
fn several_prompts_count_together_and_what_stands_before_them_separates() {
    let sut = Sut::new(&config());
    let chains = |before, texts: [&'static str; 2]| {
        let prompts = texts.map(|text| Prompt::Text(Cow::Borrowed(text)));
        sut.chunker.chains(before, &prompts)
    };
    let both = chains(("", ""), ["aaaaaaaabbbb", "cccccccc"]);
    assert_eq!(both.tokens, 5);
    sut.index.note(&sut.index.known(&both), 1.into(), sut.began);
    assert_eq!(
        sut.index.overlaps(&sut.index.known(&both), sut.began),
        [(1.into(), 2)]
    );
    for before in [("[tool]", ""), ("", "salt")] {
        let other = chains(before, ["aaaaaaaabbbb", "cccccccc"]);
        assert_eq!(sut.index.overlaps(&sut.index.known(&other), sut.began), []);
    }
    let tokens = sut.chunker.chains(("", ""), &[Prompt::Tokens(vec![7; 5])]);
    assert_eq!((tokens.tokens, tokens.chains[0].len()), (5, 2));
}

#[test]
fn memory_is_bounded_in_chunks_and_in_workers_a_chunk() {
    let sut = Sut::new(&PrefixConfig {
        chunks: 100,
        ..config()
    });
    for number in 0..10_000 {
        sut.note(&format!("{number:08}"), 1, 0);
    }
    sut.index.chunks.run_pending_tasks();
    assert!(sut.index.len() <= 100, "{}", sut.index.len());

    for worker in 0..40 {
        sut.note("aaaaaaaa", worker, worker);
    }
    // The first eight were sent it longest ago.
    let kept: Vec<_> = (8..40).map(|worker| (worker, 1)).collect();
    sut.expect("aaaaaaaa", 40, &kept);
}
