//! Answers that the mesh itself reads: of probes, of an application's metrics, of the pages of proxies.

use voile_pages::{Answer, AnswerError, samples};

/// Status, location and body of an answer that ended.
type Found = (u16, Option<String>, Vec<u8>);

fn read(bytes: &[u8], step: usize) -> Result<Found, AnswerError> {
    let mut answer = Answer::default();
    let mut is_whole = false;
    for piece in bytes.chunks(step) {
        is_whole = answer.push(piece)?;
        if is_whole {
            break;
        }
    }
    if !is_whole {
        answer.push(&[])?;
    }
    assert!(answer.status() >= 100, "{answer:?}");
    assert!(answer.body().len() <= bytes.len(), "{answer:?}");
    let location = answer.field("location").map(str::to_owned);
    Ok((answer.status(), location, answer.into_body()))
}

/// The first byte says how the rest is cut.
pub(crate) fn any_split(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let whole = read(bytes, bytes.len().max(1));
    let pieces = read(bytes, usize::from(*step % 32) + 1);
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(_), Err(_)) => {}
        both => panic!("whole and in pieces: {both:?}"),
    }
    if let Ok((_, _, body)) = whole {
        let page = String::from_utf8_lossy(&body);
        let bounds = samples(&page).map(|sample| sample.label("le").map(str::len));
        assert!(bounds.count() <= page.lines().count());
    }
}
