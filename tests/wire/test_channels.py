import pytest

from hekla.wire import channels
from hekla.wire.channels import Channel, ChannelClosed, ChannelData, PortChannels, PortData, Resized
from hekla.wire.errors import ProtocolViolationError


def test_the_newest_protocol_that_both_speak_is_chosen():
    assert channels.choose(["v4.channel.k8s.io", "v5.channel.k8s.io"]) == channels.V5
    assert channels.choose(["v4.channel.k8s.io", "channel.k8s.io"]) == channels.V4
    assert channels.choose(["base64.channel.k8s.io"]) == ""


def test_every_message_says_its_channel():
    assert channels.encode(Channel.STDOUT, b"hi") == b"\x01hi"
    assert channels.decode(b"\x00ls\n", channels.V4) == ChannelData(Channel.STDIN, b"ls\n")
    assert channels.decode("\x00ls\n", channels.V4) == ChannelData(Channel.STDIN, b"ls\n")
    assert channels.decode(b"", channels.V4) is None
    resize = channels.encode_resize(80, 24)
    assert resize == b'\x04{"Width":80,"Height":24}'
    assert channels.decode(resize, channels.V5) == Resized(80, 24)


def test_only_version_5_closes_a_channel():
    message = channels.encode_close(Channel.STDIN)
    assert message == b"\xff\x00"
    assert channels.decode(message, channels.V5) == ChannelClosed(Channel.STDIN)
    with pytest.raises(ProtocolViolationError, match="closes"):
        channels.decode(message, channels.V4)


@pytest.mark.parametrize(
    "message", [b"\x05x", b"\xff", b"\xff\x09", b"\x04[]", b'\x04{"Width":-1,"Height":2}', b"\x04{"]
)
def test_what_is_no_message_is_a_violation(message):
    with pytest.raises(ProtocolViolationError):
        channels.decode(message, channels.V5)


def test_ports_on_channels_begin_with_their_number_low_byte_first():
    ports = PortChannels([80, 8080])
    assert ports.greetings() == [b"\x00P\x00", b"\x01P\x00", b"\x02\x90\x1f", b"\x03\x90\x1f"]
    assert ports.decode(b"\x02GET") == PortData(8080, b"GET")
    assert ports.decode(b"\x01no") == PortData(80, b"no", is_error=True)
    assert ports.encode(PortData(8080, b"x", is_error=True)) == b"\x03x"
    with pytest.raises(ProtocolViolationError, match="no forwarded port"):
        ports.decode(b"\x04x")
    with pytest.raises(ProtocolViolationError, match="1 to 100"):
        PortChannels([])
