"""Transfers that a tenant orders itself: the API says where the source is, and nobody else."""

from tests.transfers.fleet import Story


def issued(story: Story, **target: str) -> dict[str, str]:
    """A token of the API for fetching the state's payload, and where it leads."""
    asked = {
        "worker": story.source.node,
        "tenant": story.tenant,
        "direction": "fetch",
        "payload_id": story.payload_id,
        "target_worker": story.target.node,
    }
    answer = story.fleet.client.post("/v1/worker-tokens", json=asked | target)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    return {"token": found["token"], "data_address": found["data_address"]}


def test_an_order_with_the_token_of_the_api_brings_the_bytes_and_no_other_order_does(story: Story):
    sink, other = story.sink(), story.sink()
    known = issued(story, sink_id=sink)
    assert known["data_address"] == story.source.data_address

    def pull(session: str, into: str, **changes: str) -> dict:
        return story.target.transfer(
            story.source, story.payload_id, session, target_sink_id=into, known=known | changes
        )

    control = story.source.url.removeprefix("http://")
    elsewhere = pull("elsewhere", sink, data_address=control)
    assert elsewhere["failure"] == "source_refused"
    assert elsewhere["detail"].startswith("not asked: ")
    assert pull("other", other)["failure"] == "source_refused"
    assert pull("right", sink)["status"] == "completed"
    assert story.target.content(sink).content == story.data
    copy = f"copy-of-{story.payload_id}"
    kept = story.target.transfer(
        story.source,
        story.payload_id,
        "copy",
        target_payload_id=copy,
        known=issued(story, target_payload_id=copy),
    )
    assert kept["status"] == "completed"
    assert story.target.get(copy).content == story.data
    story.target.delete(copy)
