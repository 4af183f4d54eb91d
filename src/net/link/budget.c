/* Counts the further connections to each process. */
#include "net/link/budget.h"

#include "base/config.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct account {
    struct account *next;
    uint64_t process;
    unsigned taken; /* more than 0 */
};

/* Guards the list. */
static pthread_mutex_t budget_lock = PTHREAD_MUTEX_INITIALIZER;
static struct account *accounts;

/* Where the account of a process is, or would be added. */
static struct account **budget_find(uint64_t process)
{
    struct account **at = &accounts;

    while (*at != NULL && (*at)->process != process)
        at = &(*at)->next;
    return at;
}

int budget_take(uint64_t process, unsigned wanted, unsigned *granted)
{
    const struct config *config;
    struct account **account;
    unsigned left;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&budget_lock);
    account = budget_find(process);
    left = (unsigned)config->socket_budget;
    if (*account != NULL)
        left = (left > (*account)->taken ? left - (*account)->taken + 3 : 0) / 4;
    *granted = wanted < left ? wanted : left;
    if (*account == NULL && *granted > 0)
        *account = calloc(1, sizeof **account);
    if (*account != NULL) {
        (*account)->process = process;
        (*account)->taken += *granted;
    } else if (*granted > 0) {
        result = error_system(ENOMEM, "a connection");
    }
    pthread_mutex_unlock(&budget_lock);
    return result;
}

void budget_give(uint64_t process, unsigned granted)
{
    struct account **at;
    struct account *account;

    pthread_mutex_lock(&budget_lock);
    at = budget_find(process);
    account = *at;
    if (account != NULL && granted < account->taken) {
        account->taken -= granted;
    } else if (account != NULL) {
        *at = account->next;
        free(account);
    }
    pthread_mutex_unlock(&budget_lock);
}
