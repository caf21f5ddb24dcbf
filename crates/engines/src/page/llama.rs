use actix_kv_metrics::ForwardPassMetrics;

use super::{PageError, RankReport, Series, count, samples_of};

const WAITING: &str = "llamacpp:requests_deferred";
const RUNNING: &str = "llamacpp:requests_processing";

pub(super) fn read(page: &str) -> Result<Vec<RankReport>, PageError> {
    let mut waiting = Series::new(WAITING);
    let mut running = Series::new(RUNNING);
    for sample in samples_of(page, None, &[WAITING, RUNNING]) {
        let (series, sample) = sample?;
        let value = count(series, sample.value)?;
        let of = if series == WAITING {
            &mut waiting
        } else {
            &mut running
        };
        of.insert(0, value)?;
    }
    let whole = |series: &Series<u64>| series.of(0).map_err(|_| series.missing(None));
    let metrics = ForwardPassMetrics::new(0, 0, whole(&waiting)?);
    let metrics = metrics.with_request_active_slots(whole(&running)?);
    Ok(vec![RankReport::new(0, metrics)])
}
