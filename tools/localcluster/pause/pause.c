/* The first process of every pod's sandbox: it holds the namespaces, reaps orphans and waits for the end. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int number) { _exit(number == SIGINT || number == SIGTERM ? 0 : 1); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
