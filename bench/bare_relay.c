/* A bare relay: the floor under every router on a machine. One thread; each client has a connection of its own to the engine; nothing of
   what passes is read, chosen, counted or written down. `serving_proxy.py` builds it where there is a compiler.

       bare_relay PORT ENGINE_PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 65536, EVENTS = 256 };

static int other_end[MOST]; /* by descriptor; 0: none */
static char piece[1 << 20];

static void watch(int epoll, int descriptor, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = descriptor};
    epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

static int without_delay(int descriptor) {
    int one = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return descriptor;
}

static void take_client(int epoll, int listener, const struct sockaddr_in *engine) {
    int client = without_delay(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    int inside = without_delay(socket(AF_INET, SOCK_STREAM, 0));
    if (client < 0 || connect(inside, (const struct sockaddr *)engine, sizeof *engine)) exit(1);
    other_end[client] = inside;
    other_end[inside] = client;
    watch(epoll, client, EPOLLIN | EPOLLET);
    watch(epoll, inside, EPOLLIN | EPOLLET);
}

static void pass_on(int from) {
    int to = other_end[from];
    ssize_t got = to ? recv(from, piece, sizeof piece, MSG_DONTWAIT) : -1;
    if (!to || (got < 0 && errno == EAGAIN)) return;
    if (got <= 0) {
        other_end[from] = other_end[to] = 0;
        close(from);
        close(to);
        return;
    }
    for (ssize_t sent = 0; sent < got;) {
        ssize_t more = send(to, piece + sent, got - sent, MSG_NOSIGNAL);
        if (more > 0) sent += more;
        else if (errno != EAGAIN) return;
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in engine = own;
    engine.sin_port = htons(atoi(words[2]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, epoll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, 1024)) return 1;
    watch(epoll, listener, EPOLLIN);
    struct epoll_event ready[EVENTS];
    for (;;) {
        int found = epoll_wait(epoll, ready, EVENTS, -1);
        for (int at = 0; at < found; at++) {
            if (ready[at].data.fd == listener) take_client(epoll, listener, &engine);
            else pass_on(ready[at].data.fd);
        }
    }
}
